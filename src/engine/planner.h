#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/engine.h"
#include "format/model_config.h"
#include "residency/memory_plan.h"

namespace thimble {

/// The budget of an engine that is granted none, with `free_bytes` for the process and all others:
/// that, less a reserve for the rest of the machine.
uint64_t DefaultMemoryBudget(uint64_t free_bytes);
/// The same for this machine as it is now.
uint64_t DefaultMemoryBudget();

/// What Engine::Open asks of PlanMemory for `options`, of which memory_bytes and num_threads are
/// replaced by the figures given. Where the options do not give the size of the process, returns
/// freed memory to the system and takes the size from the kernel; its peak bounds the budget from
/// below.
PlanRequest MakePlanRequest(const ModelConfig& config, const EngineOptions& options,
                            uint64_t budget_bytes, size_t num_threads);

/// How much the process is expected to grow while a model of this configuration is opened: its
/// tokenizer and its table of experts.
uint64_t UnloadedBytes(const ModelConfig& config);

}  // namespace thimble
