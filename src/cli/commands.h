#pragma once

#include <CLI/CLI.hpp>

/// Each adds one command to the program: its options, its help, and the callback that runs it. A
/// callback reports failure by throwing Error; one with an empty message means that the report has
/// been given.
namespace thimble::cli {

void AddRunCommand(CLI::App& program);
void AddChatCommand(CLI::App& program);
void AddInspectCommand(CLI::App& program);
void AddServeCommand(CLI::App& program);
void AddTokenizeCommand(CLI::App& program);
void AddDetokenizeCommand(CLI::App& program);
void AddEvalCommand(CLI::App& program);
void AddPlanCommand(CLI::App& program);
void AddDoctorCommand(CLI::App& program);
void AddBenchCommand(CLI::App& program);
void AddPackCommand(CLI::App& program);
void AddVerifyCommand(CLI::App& program);
void AddSynthCommand(CLI::App& program);

}  // namespace thimble::cli
