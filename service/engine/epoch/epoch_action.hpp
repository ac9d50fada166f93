#pragma once
// The actions that the epoch machine wants done, in order. The code that performs them decides nothing.

#include "base/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gradsync::engine {

/// Check the declaration of one rank; `EpochMachine::on_checked` follows.
struct CheckDeclaration {
  std::int64_t rank = 0;
  std::uint64_t ticket = 0;
};

/// Tell the other nodes that all ranks of this one have declared; `EpochMachine::on_prepare` follows, at once where
/// there are none. Not `declared`: one of them declares anew, so that what was told counts no more.
struct TellLocals {
  bool declared = false;
};

/// Tell the other nodes that the epoch cannot form or go on here. What was told of declarations counts no more.
struct TellLeft {
  Error error;
};

/// Tell the other nodes that the lanes have the plan; `EpochMachine::on_begin` follows.
struct TellReady {
  bool keeps_steps = false;  ///< as in `CommitPlan`
};

/// Plan from the declarations of all ranks; `EpochMachine::on_planned` follows.
struct MakePlan {
  std::uint64_t ticket = 0;
};

/// Have the lane load the plan that was just made; `on_lane_loaded` or `on_load_failed` follows.
struct LoadPlan {};

/// Have the lane forget the plan that it has, or is about to have.
struct UnloadPlan {};

/// The epoch begins with the loaded plan.
struct CommitPlan {
  bool keeps_steps = false;  ///< the plan is the one before, and so is what survivors have sent for the new epoch
};

/// The declarations are answered: steps may be launched.
struct OpenSteps {};

/// Answer the declare call that waits: with the error, or with the plan.
struct AnswerDeclare {
  std::int64_t rank = 0;
  std::optional<Error> error;
};

/// End the attempt in flight; `EpochMachine::on_attempt_failed` follows, now or when the lane is quiet.
struct FailAttempt {
  Error error;
};

/// Answer the step calls that wait for the epoch to form with the error; it goes on forming. `EpochMachine::on_told`
/// follows for each.
struct FailStepCalls {
  Error error;
};

/// A new epoch, by `EpochMachine::epoch`, forms.
struct FormEpoch {
  std::string reason;
};

/// The rank is gone: its memory is released, and its step call waits for the end of the attempt.
struct VacateSeat {
  std::int64_t rank = 0;
};

/// A rank was lost that did not leave by choice.
struct ReportLoss {
  std::int64_t rank = 0;
  Error error;
};

using EpochAction = std::variant<
    CheckDeclaration,
    TellLocals,
    TellLeft,
    TellReady,
    MakePlan,
    LoadPlan,
    UnloadPlan,
    CommitPlan,
    OpenSteps,
    AnswerDeclare,
    FailAttempt,
    FailStepCalls,
    FormEpoch,
    VacateSeat,
    ReportLoss>;
using EpochActions = std::vector<EpochAction>;

}  // namespace gradsync::engine
