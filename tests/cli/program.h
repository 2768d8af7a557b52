#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temp_dir.h"

extern char** environ;

namespace thimble {

/// The `thimble` command as a process of its own.
class Program {
 public:
  struct Result {
    int exit_code = -1;  // 128 + the signal where one ended it
    std::string out;
    std::string err;
  };

  /// Starts it; standard input comes from a file with `input`, standard output goes to `out_path`
  /// if that is given.
  explicit Program(const std::vector<std::string>& arguments, const std::string& input = {},
                   const std::string& out_path = {})
      : out_path_(out_path.empty() ? (dir_ / "out").string() : out_path) {
    std::ofstream(dir_ / "in", std::ios::binary) << input;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, (dir_ / "in").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, out_path_.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, (dir_ / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    std::vector<std::string> words = {THIMBLE_BINARY};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int error =
        posix_spawn(&process_, THIMBLE_BINARY, &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error("cannot start " THIMBLE_BINARY);
  }

  /// What it has printed so far.
  std::string OutSoFar() const { return Read(out_path_); }
  void Signal(int signal) const { kill(process_, signal); }

  Result Wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, Read(out_path_), Read(dir_ / "err")};
  }

  static Result Run(const std::vector<std::string>& arguments, const std::string& input = {},
                    const std::string& out_path = {}) {
    return Program(arguments, input, out_path).Wait();
  }

 private:
  static std::string Read(const std::filesystem::path& path) {
    if (!std::filesystem::is_regular_file(path)) return {};
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempDir dir_;
  std::string out_path_;
  pid_t process_ = -1;
};

}  // namespace thimble
