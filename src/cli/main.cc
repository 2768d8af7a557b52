#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "base/error.h"
#include "base/process_limits.h"
#include "cli/commands.h"
#include "engine/engine.h"

namespace thimble::cli {
namespace {

int Report(const std::string& message, ErrorCode code) {
  std::fflush(stdout);
  if (!message.empty()) fmt::print(stderr, "thimble: {}\n", message);
  return static_cast<int>(code);
}

int Run(int argc, char** argv) {
  CLI::App program("Thimble runs mixture-of-experts models that are far larger than memory.",
                   "thimble");
  program.footer(
      "Try:\n  thimble run -p \"In the beginning\"\n  thimble run -m DIR -p TEXT --memory 1.5G\n"
      "Exit codes: 0 fine, 1 failed while running, 2 wrong usage, 3 bad or unsupported model, 4 "
      "over "
      "the memory budget, 130 interrupted.");
  program.set_version_flag(
      "--version",
      [] { return fmt::format("thimble {} ({})", THIMBLE_VERSION, BestKernels().simd); },
      "Print the version and the SIMD instructions in use");
  program.require_subcommand(1);
  program.get_formatter()->column_width(32);
  AddRunCommand(program);
  AddChatCommand(program);
  AddServeCommand(program);
  AddInspectCommand(program);
  AddTokenizeCommand(program);
  AddDetokenizeCommand(program);
  AddEvalCommand(program);
  AddPlanCommand(program);
  AddDoctorCommand(program);
  AddBenchCommand(program);
  AddPackCommand(program);
  AddVerifyCommand(program);
  AddSynthCommand(program);
  try {
    AdaptProcessLimits();
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    if (asked) return program.exit(error);
    return Report(
        fmt::format("{}\nTry 'thimble --help' or 'thimble COMMAND --help'.", error.what()),
        ErrorCode::kUsage);
  } catch (const Error& error) {
    const bool interrupted = error.code() == ErrorCode::kInterrupted;
    return Report(interrupted ? "interrupted" : error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return Report("the system refused memory" + ExplainMemoryLimits(ReadProcessLimits()),
                  ErrorCode::kRuntime);
  } catch (const std::exception& error) {
    return Report(error.what(), ErrorCode::kRuntime);
  }
  return 0;
}

}  // namespace
}  // namespace thimble::cli

int main(int argc, char** argv) {
  try {
    return thimble::cli::Run(argc, argv);
  } catch (...) {
    return static_cast<int>(
        thimble::ErrorCode::kRuntime);  // the report itself could not be printed
  }
}
