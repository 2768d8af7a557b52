/// Runs a fuzzer's corpus as an ordinary test, where libFuzzer is not linked: every file of the
/// folders (or files) given as arguments. Fails if there is none, so that a wrong path is noticed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> FindInputs(const std::vector<fs::path>& arguments) {
  std::vector<fs::path> inputs;
  for (const fs::path& argument : arguments) {
    if (fs::is_regular_file(argument)) inputs.push_back(argument);
    if (!fs::is_directory(argument)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) inputs.push_back(entry.path());
    }
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

bool Replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  // Not a std::string: its spare byte would hide a read past the end from AddressSanitizer.
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  if (file.bad() || !file.is_open()) return false;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<fs::path> inputs = FindInputs({argv + 1, argv + argc});
  if (inputs.empty()) {
    std::fprintf(stderr, "expected folders with at least one input as arguments, found none\n");
    return 1;
  }
  for (const fs::path& input : inputs) {
    // Before the run, so that a crash comes after the name of its input.
    std::printf("%s\n", input.c_str());
    std::fflush(stdout);
    if (!Replay(input)) {
      std::fprintf(stderr, "%s: cannot be read\n", input.c_str());
      return 1;
    }
  }
  std::printf("%zu inputs\n", inputs.size());
  return 0;
}
