"""Faults in how epochs form and end: which ranks are waited for and answered, and when a number counts."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["EPOCH"]


def machine(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "epoch", f"service/engine/epoch/{file}", old, new)


EPOCH = (
    machine(
        "survivors-get-another-plan",
        "What a new process declared changes the plan under the ranks that already work with it.",
        "epoch_machine_form.cpp",
        "  if (digest_ && !redeclare_ && *digest_ != made.digest && roster_.any_committed()) {",
        "  if (digest_ && redeclare_ && *digest_ != made.digest && roster_.any_committed()) {",
    ),
    machine(
        "old-declarations-count",
        "After a rank declared anew, what the others declared before is planned with.",
        "epoch_machine_form.cpp",
        "  return !seat.declaration.valid || (redeclare_ && !seat.declaration.fresh);",
        "  return !seat.declaration.valid;",
    ),
    machine(
        "a-lost-rank-leaves-the-plan",
        "A plan goes on to the lane though a rank that it was made for is gone.",
        "epoch_machine_form.cpp",
        "  const bool formed = state_ >= State::Gathering && state_ <= State::Joining;\n",
        "  const bool formed = loads();\n",
    ),
    machine(
        "the-lane-keeps-a-dropped-plan",
        "A plan that is loaded for an epoch that will not begin stays on the lane.",
        "epoch_machine_form.cpp",
        "  if (loads()) {\n    actions.emplace_back(UnloadPlan{});\n  }\n",
        "",
    ),
    machine(
        "an-epoch-counts-too-early",
        "The number rises while the lane still writes gradients of the epoch before.",
        "epoch_machine.cpp",
        "  state_ = State::Ending;\n  ending_ = error;\n",
        "  state_ = State::Ending;\n  ++epoch_;\n  ending_ = error;\n",
    ),
    machine(
        "trained-weights-compared",
        "A newcomer's weights are compared with those of survivors that have trained on.",
        "epoch_machine.cpp",
        "  redeclare_ = redeclare_ || (steps_ > 0 && roster_.compares_weights());",
        "  redeclare_ = redeclare_ || (steps_ < 0 && roster_.compares_weights());",
    ),
    machine(
        "a-pause-does-not-count",
        "The time that a declare call waits for a paused rank runs out.",
        "epoch_machine.cpp",
        "      seat.call->deadline += now - std::max(*suspended_, seat.call->since);",
        "      seat.call->deadline += now - now;",
    ),
    machine(
        "no-successor-is-not-noticed",
        "The others wait their whole deadline for a rank that died before it declared.",
        "epoch_machine.cpp",
        "    if (!before.declaration.committed || waited_for) {\n      roster_[rank].loss",
        "    if (before.declaration.committed && !waited_for) {\n      roster_[rank].loss",
    ),
    machine(
        "a-refusal-is-not-passed-on",
        "The ranks that wait do not hear that the declaration of another was refused.",
        "epoch_machine_form.cpp",
        "    tell_waiting(*seat.refusal, actions);\n  } else",
        "    seat.refusal->hint.clear();\n  } else",
    ),
    machine(
        "a-refusal-stands-for-ever",
        "A rank that corrected its declaration is still held to have a bad one.",
        "epoch_machine_form.cpp",
        "  seat.refusal.reset();\n",
        "",
    ),
    machine(
        "a-survivor-is-not-told",
        "A survivor that calls a step later never hears why the epoch does not form.",
        "epoch_machine_form.cpp",
        "      seat.unheard = survivors;\n",
        "",
    ),
    machine(
        "a-failed-load-ends-nothing",
        "The lane could not take the plan, and the ranks go on waiting for it.",
        "epoch_machine_form.cpp",
        "  if (loads()) {\n    tell_waiting(error, actions);\n  }\n",
        "  (void)error;\n",
    ),
    machine(
        "begins-before-others-have-loaded",
        "A word to begin is taken while the lane of this node has no plan.",
        "epoch_machine_told.cpp",
        "  if (state_ != State::Joining) {\n",
        "  if (state_ != State::Joining && state_ != State::Loading) {\n",
    ),
    machine(
        "what-others-prepare-early-is-lost",
        "Other nodes were quiet first, and wait for a node that has forgotten their epoch.",
        "epoch_machine_told.cpp",
        "    prepared_ = epoch;  // other nodes are quiet already\n",
        "",
    ),
    machine(
        "what-was-taken-back-counts-on",
        "Other nodes plan with what a rank of this one declares anew.",
        "epoch_machine_form.cpp",
        "    actions.emplace_back(TellLocals{false});\n",
        "",
    ),
    machine(
        "an-end-by-others-takes-declarations-back",
        "Other nodes hear that what ranks here declared counts no more, and wait for them.",
        "epoch_machine_told.cpp",
        "    fail_attempt(error, actions);\n  } else if (told_ && !ending_) {\n",
        "    end_epoch(error, actions);\n  } else if (told_ && !ending_) {\n",
    ),
    machine(
        "survivors-wait-under-an-old-number",
        "The epoch gets a higher number than survivors were told, and nobody says so to their step calls.",
        "epoch_machine_told.cpp",
        "      actions.emplace_back(FailStepCalls{error});\n      actions.emplace_back(FormEpoch{error.message});\n",
        "      actions.emplace_back(FormEpoch{error.message});\n",
    ),
    machine(
        "a-step-leaves-a-refusal",
        "A rank that went on with steps is still held to have a bad declaration.",
        "epoch_machine_form.cpp",
        "{ roster_[rank].refusal.reset(); }",
        "{ (void)rank; }",
    ),
    machine(
        "a-halted-job-forms",
        "The daemon ends, and an epoch begins that no rank may step in.",
        "epoch_machine_form.cpp",
        "  if (state_ != State::Forming || halted_ || ",
        "  if (state_ != State::Forming || ",
    ),
)
