#pragma once

#include <string>

#include "outlook/plan_outlook.h"

namespace thimble::cli {

/// An outlook as tables for a reader, ended by what was assumed.
std::string PlanText(const Outlook& outlook);
/// The same as a JSON object: bytes, seconds, bytes a second. docs/CLI.md lists the fields.
std::string PlanJson(const Outlook& outlook);

}  // namespace thimble::cli
