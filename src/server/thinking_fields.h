#pragma once

#include <string>

#include "chat/chat_request.h"
#include "server/api.h"
#include "server/request_fields.h"

namespace thimble::server {

/// Sets thinking and effort from a level: none, minimal, off, disabled; low; medium and high; xhigh
/// and max. ApiError naming `field` for any other.
void SetEffort(const std::string& level, const std::string& field, ChatRequest* chat);

/// Reads how much the model is to think, by any of the ways that clients of all APIs have:
/// thinking, reasoning, reasoning_effort, output_config, enable_thinking, thinking_budget and
/// chat_template_kwargs; as the model serves it where nothing is said. One that turns it off wins.
void ReadThinking(const RequestFields& fields, const ServedModel& model, ChatRequest* chat);

}  // namespace thimble::server
