// The server opens no connection of its own: counted by the kernel in a network namespace where nobody else is.
#include <arpa/inet.h>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/file.h"
#include "http_client.h"
#include "serve_process.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr int kSkip = 77;
constexpr const char* kElsewhere = "10.0.0.1";

// Brings the loopback device up and sends everything there, so that an attempt to reach an address elsewhere is
// counted as one rather than failing for want of a route.
bool open_loopback() {
  const int control = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq device{};
  std::strcpy(device.ifr_name, "lo");
  device.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  bool good = ioctl(control, SIOCSIFFLAGS, &device) == 0;
  rtentry route{};
  route.rt_dst.sa_family = AF_INET;
  route.rt_genmask.sa_family = AF_INET;
  char name[] = "lo";
  route.rt_dev = name;
  route.rt_flags = RTF_UP;
  good = good && ioctl(control, SIOCADDRT, &route) == 0;
  close(control);
  return good;
}

// The kernel's counters of this namespace, as "Tcp.ActiveOpens".
std::map<std::string, int64_t> counters() {
  std::ifstream file("/proc/self/net/snmp");
  std::map<std::string, int64_t> out;
  std::string names;
  std::string values;
  while (std::getline(file, names) && std::getline(file, values)) {
    std::istringstream name_words(names);
    std::istringstream value_words(values);
    std::string protocol;
    std::string skipped;
    name_words >> protocol;
    value_words >> skipped;
    protocol.pop_back();  // the colon
    std::string name;
    int64_t value = 0;
    while (name_words >> name && value_words >> value) out[fmt::format("{}.{}", protocol, name)] = value;
  }
  return out;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Attempts to leave, as a library that fetches pictures or asks for names would make them.
void try_to_leave() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(80);
  inet_pton(AF_INET, kElsewhere, &address.sin_addr);
  const int stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (stream < 0) throw std::runtime_error("no socket can be made");
  require(connect(stream, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0, "a connection was made");
  close(stream);
  const int datagram = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  if (datagram < 0) throw std::runtime_error("no socket can be made");
  (void)sendto(datagram, "x", 1, 0, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  close(datagram);
}

void serve_and_count(const std::string& folder) {
  const std::string model = folder + "/demo.tandem";
  test::Process convert({"convert", TANDEM_SOURCE_DIR "/models/demo-flash", "-o", model}, folder + "/out",
                        folder + "/error");
  require(convert.wait_for_end() == 0, "the demo is not converted");
  test::Process server({"serve", model, "--port", "0", "--threads", "1"}, folder + "/serve", folder + "/serve-error");
  const uint16_t port = server.port();
  require(port != 0, "the server does not start");
  int64_t connections = 0;
  const auto fetch = [&](const std::string& request) {
    ++connections;
    return test::fetch(port, request);
  };
  for (int i = 0; i < 2000 && fetch(test::get("/health")).status != 200; ++i) std::this_thread::sleep_for(10ms);
  for (const char* url : {"http://10.0.0.1/x.png", "https://example.org/x.png", "file:///etc/passwd"}) {
    const std::string body = std::string(R"({"messages":[{"role":"user","content":[{"type":"text","text":"What?"},
        {"type":"image_url","image_url":{"url":")") +
                             url + R"("}}]}],"enable_thinking":false,"max_tokens":4})";
    const auto answer = fetch(test::post("/v1/chat/completions", body));
    require(answer.status == 200, "a picture is not answered: " + answer.body);
  }
  for (const char* path : {"/", "/v1/models", "/metrics", "/props", "/api/tags"}) {
    require(fetch(test::get(path, "Accept: text/html\r\n")).status == 200, std::string(path) + " is not served");
  }
  const auto seen = counters();
  require(seen.at("Tcp.ActiveOpens") == connections, std::to_string(seen.at("Tcp.ActiveOpens")) +
                                                         " connections were opened, the client's are " +
                                                         std::to_string(connections));
  require(seen.at("Udp.OutDatagrams") == 0, "datagrams were sent");
  require(seen.at("Ip.OutNoRoutes") == 0, "an address without a route was tried");
  try_to_leave();
  const auto after = counters();
  require(after.at("Tcp.ActiveOpens") == connections + 1, "the counter of connections counts nothing");
  require(after.at("Udp.OutDatagrams") == 1, "the counter of datagrams counts nothing");
  server.signal(SIGTERM);
  require(server.wait_for_end() == 0, "the server does not end in good order");
}

TEST(Outbound, TheServerOpensNoConnection) {
  const auto folder = std::filesystem::temp_directory_path() / ("tandem-outbound-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string report = (folder / "report").string();
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);  // whatever hangs
    int code = 0;
    try {
      if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        base::write_text(report, std::string("network namespaces are not allowed here: ") + std::strerror(errno));
        code = kSkip;
      } else if (!open_loopback()) {
        base::write_text(report, std::string("the loopback device can't be brought up: ") + std::strerror(errno));
        code = kSkip;
      } else {
        serve_and_count(folder.string());
      }
    } catch (const std::exception& error) {
      base::write_text(report, error.what());
      code = 1;
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const std::string text = std::filesystem::exists(report) ? base::read_text(report, 1 << 20) : "";
  std::filesystem::remove_all(folder);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkip) GTEST_SKIP() << text;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
}

}  // namespace
}  // namespace tandem
