#pragma once

#include <filesystem>
#include <optional>

#include "doctor/health_report.h"
#include "outlook/planned_model.h"

namespace thimble {

/// Judges the files of the model in `dir`, as downloaded or packed: everything that can be known
/// without reading its weights. The model, if they are sound.
std::optional<PlannedModel> CheckModel(const std::filesystem::path& dir, HealthReport* report);

/// Judges what the model will be like here. `request` was made before anything large was measured;
/// `drive` is bytes a second, where known.
void CheckPace(const PlannedModel& model, const PlanRequest& request,
               const std::optional<double>& drive, HealthReport* report);

}  // namespace thimble
