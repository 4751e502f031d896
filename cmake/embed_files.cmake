# cmake -DOUTPUT=FILE.cpp -DFOLDER=FOLDER -DFILES=a;b -P embed_files.cmake: writes the text files into one C++ source, as
# tandem::serve::embedded_files() gives them out, named as they are from the folder on.
set(delimiter "tandem_file")
set(entries "")
foreach(file ${FILES})
  file(READ "${file}" content)
  if(content MATCHES "\\)${delimiter}\"")
    message(FATAL_ERROR "${file} holds the end of a C++ string: )${delimiter}\"")
  endif()
  file(RELATIVE_PATH name "${FOLDER}" "${file}")
  string(APPEND entries "    {\"${name}\", R\"${delimiter}(${content})${delimiter}\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/embed_files.cmake.
#include \"serve/embedded_files.h\"

namespace tandem::serve {

namespace {

constexpr EmbeddedFile kEmbeddedFiles[] = {
${entries}};

}  // namespace

std::span<const EmbeddedFile> embedded_files() {
  return kEmbeddedFiles;
}

}  // namespace tandem::serve
")
