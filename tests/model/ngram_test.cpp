#include "model/ngram.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace tandem::model {
namespace {

constexpr int64_t kEnd = 248044;

// The constants of the published Flash-Next checkpoint, with two heads of each size.
NgramHash published() {
  return {{23703573157769, 20109073645365, 8052911324071},
          {20000003, 20000023, 20000081, 20000093},
          {0, 20000003, 40000026, 60000107},
          kEnd};
}

std::vector<int64_t> rows(const NgramHash& hash, int64_t token, int64_t previous, int64_t before) {
  std::vector<int64_t> out(static_cast<size_t>(hash.heads()));
  hash.rows(token, previous, before, out);
  return out;
}

TEST(NgramEmbedding, HashesTheWindowByItsFormula) {
  const NgramHash hash = published();
  const int64_t mix2 = (int64_t{9419} * 23703573157769) ^ (int64_t{198} * 20109073645365);
  const int64_t mix3 = mix2 ^ (int64_t{846} * 8052911324071);
  EXPECT_EQ(rows(hash, 9419, 198, 846), (std::vector<int64_t>{mix2 % 20000003, mix2 % 20000023 + 20000003,
                                                              mix3 % 20000081 + 40000026, mix3 % 20000093 + 60000107}));
  EXPECT_EQ(hash.reach(), 60000107 + 20000093);
}

TEST(NgramEmbedding, EosCutsTheWindow) {
  const NgramHash hash = published();
  EXPECT_EQ(rows(hash, 5, kEnd, 7), rows(hash, 5, kEnd, kEnd));
  EXPECT_EQ(rows(hash, 5, 6, kEnd), rows(hash, 5, 6, -1));
  EXPECT_NE(rows(hash, 5, 6, kEnd), rows(hash, 5, 6, 7));
}

TEST(NgramEmbedding, ATokensOwnEosDoesNotCutItsContext) {
  const NgramHash hash = published();
  EXPECT_NE(rows(hash, kEnd, 6, 7), rows(hash, kEnd, kEnd, kEnd));
}

TEST(NgramEmbedding, TheStartOfTheSequenceCountsAsEos) {
  const NgramHash hash = published();
  EXPECT_EQ(rows(hash, 5, -1, -1), rows(hash, 5, kEnd, kEnd));
}

TEST(NgramEmbedding, LargestIdsStayInsideTheTable) {
  const NgramHash hash = published();
  for (const int64_t row : rows(hash, 248319, 248319, 248319)) {
    EXPECT_GE(row, 0);
    EXPECT_LT(row, hash.reach());
  }
}

TEST(NgramEmbedding, RefusesHeadsWithoutRows) {
  EXPECT_THROW(NgramHash({1, 2, 3}, {0, 5}, {0, 0}, kEnd), base::Error);
  EXPECT_THROW(NgramHash({1, 2, 3}, {5, 5}, {0, -1}, kEnd), base::Error);
}

}  // namespace
}  // namespace tandem::model
