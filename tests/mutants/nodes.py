"""Faults in how the daemons of one job agree: who counts, what has to be there first, and what is in doubt."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["NODES"]


def peers(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "nodes", f"service/engine/peers/{file}", old, new)


def job(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "nodes", f"service/engine/job/{file}", old, new)


def step(name: str, fault: str, old: str, new: str, file: str = "step_machine_end.cpp") -> Mutant:
    return Mutant(name, fault, "nodes", f"service/engine/step/{file}", old, new)


def lane(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "nodes", f"service/device/{file}", old, new)


NODES = (
    job(
        "a-number-of-its-own",
        "A node begins at a random epoch, which may be above that which all nodes agree on.",
        "job_membership.cpp",
        "          peers_->alone() ? context.options.first_epoch : 1,  // other nodes say the number, which may be any",
        "          context.options.first_epoch,",
    ),
    peers(
        "no-epoch-fence",
        "A node that was connected in an earlier epoch counts as connected in this one.",
        "coordinator_epoch.cpp",
        "    if (connected->epoch == epoch_) {",
        "    if (connected->epoch != 0) {",
    ),
    peers(
        "no-epoch-fence-at-the-member",
        "A member connects for an epoch that it is not in.",
        "member_machine_told.cpp",
        "    if (state_ == State::Ready && connect->epoch == epoch_) {",
        "    if (state_ == State::Ready) {",
    ),
    peers(
        "no-attempt-fence",
        "The vote for an attempt that was aborted counts for the next one.",
        "coordinator_attempt.cpp",
        "    if (vote->word == word()) {",
        "    if (vote->word != 0) {",
    ),
    peers(
        "no-challenge-fence",
        "A node joins as a life of its daemon that a later one has replaced.",
        "coordinator_joins.cpp",
        "    if (link < member.newest) {",
        "    if (link < member.link) {",
    ),
    peers(
        "a-replaced-link-stays-open",
        "The link of an earlier life of a node is left open when a later one has joined.",
        "coordinator_joins.cpp",
        "    close(member.link, actions);\n    change(member, [&] { member.link = 0; });\n",
        "    change(member, [&] { member.link = 0; });\n",
    ),
    peers(
        "an-ended-link-is-read",
        "A member obeys what a link brings that has ended.",
        "member_machine_told.cpp",
        "  if (!own() && connection_ != Connection::Open) {",
        "  if (!own() && connection_ == Connection::Opening) {",
    ),
    peers(
        "superseded-join",
        "A JOIN that comes a second time stands for the one that is to come.",
        "coordinator_joins.cpp",
        "    if (link == member.newest && join.count <= member.count) {",
        "    if (link == member.newest && join.count == 0) {",
    ),
    peers(
        "crossed-join",
        "A JOIN that crossed with PREPARE forms an epoch that the next JOIN of that node ends, and so on.",
        "coordinator_joins.cpp",
        "  if (told != 0 && join.epoch <= told) {",
        "  if (told != 0 && join.epoch < told) {",
    ),
    peers(
        "begin-early",
        "An epoch begins while one node is not connected.",
        "coordinator_epoch.cpp",
        "  if (course_.connected.size() == course_.roster.size()) {",
        "  if (course_.connected.size() + 1 >= course_.roster.size()) {",
    ),
    peers(
        "commit-without-one-vote",
        "The votes of all nodes but one are enough.",
        "coordinator_attempt.cpp",
        "  } else if (under_way_.votes.size() == course_.roster.size()) {",
        "  } else if (under_way_.votes.size() + 1 >= course_.roster.size()) {",
    ),
    peers(
        "vote-before-the-decision",
        "A vote counts that came before there was anything to vote for.",
        "coordinator_attempt.cpp",
        "  if (under_way_.phase != Phase::Voting) {\n    return;\n  }\n",
        "",
    ),
    peers(
        "duplicate-ask",
        "An ask that comes twice stands for the one that is missing.",
        "coordinator_attempt.cpp",
        " || under_way_.asks.contains(number) || (under_way_.measured && !clip)) {\n    return;\n  }\n",
        " || (under_way_.measured && !clip)) {\n    return;\n  }\n"
        "  if (under_way_.asks.contains(number)) {\n    all_asked(now, actions);\n    return;\n  }\n",
    ),
    peers(
        "done-before-the-record",
        "Nodes hear that an attempt is done before the record of the coordinator says so.",
        "coordinator_attempt.cpp",
        "  actions.emplace_back(StoreDone{done});\n  send_to_all(now, PeerDone{done}, actions);\n",
        "  send_to_all(now, PeerDone{done}, actions);\n  actions.emplace_back(StoreDone{done});\n",
    ),
    peers(
        "doubt-is-failure",
        "An attempt in doubt is taken as failed, although the record of another node says that it is done.",
        "coordinator_form.cpp",
        "    if (roll_.has_done(doubt)) {",
        "    if (roll_.has_done(doubt) && words.empty()) {",
    ),
    peers(
        "doubt-waits-for-a-rank",
        "What came of an attempt is not told to a node until a lost rank of it is replaced.",
        "coordinator_form.cpp",
        "    if (const std::optional<Verdict> verdict = verdict_of(doubt, words, all_joined())) {",
        "    const std::optional<Verdict> verdict = verdict_of(doubt, words, all_joined());\n"
        "    if (verdict && all_joined()) {",
    ),
    peers(
        "local-retry",
        "A node that voted and loses the epoch forgets that the attempt may be done.",
        "member_machine.cpp",
        "  phase_ = phase_ == Phase::Voted ? Phase::Doubt : Phase::Idle;",
        "  phase_ = Phase::Idle;",
    ),
    peers(
        "link-down-ignored",
        "The epoch stands on though a node of it has no link any more.",
        "coordinator_links.cpp",
        "  if (state_ != State::Gathering) {\n    end_epoch(",
        "  if (state_ == State::Preparing) {\n    end_epoch(",
    ),
    peers(
        "a-pause-is-not-forwarded",
        "Other nodes' deadlines run on while the rank that they wait for is paused.",
        "coordinator_epoch.cpp",
        "      member.told_paused = waits;\n      send(now, member, std::move(pause), actions);\n",
        "      member.told_paused = waits;\n",
    ),
    peers(
        "own-member-out-of-order",
        "What the coordinator says last to the member of its own node is heard first.",
        "coordinator_node.cpp",
        "    Said said = std::move(said_.front());\n    said_.pop_front();\n",
        "    Said said = std::move(said_.back());\n    said_.pop_back();\n",
    ),
    peers(
        "the-first-node-owns-a-box",
        "A box is counted on the first node that holds it, which need not have its lowest rank.",
        "sums/comparison.cpp",
        "    const NodeNumber owner = held.owner.value_or(held.nodes.front());",
        "    const NodeNumber owner = held.nodes.front();",
    ),
    peers(
        "some-boxes-are-not-counted",
        "Of the boxes whose owner has no gradient only as many are counted as findings are kept.",
        "coordinator_compare.cpp",
        "        (device::is_uncounted(*counted) ? under_way_.later : others).push_back(box);",
        "        others.push_back(box);",
    ),
    lane(
        "a-box-counts-on-every-node",
        "A box counts in the norm on each node that holds it.",
        "step/stats_finish.cpp",
        "    if (tensor_->counted && !is_elsewhere()) {",
        "    if (tensor_->counted) {",
    ),
    lane(
        "a-value-that-is-not-finite-is-forgotten",
        "A NaN in a box that another node counts leaves the norm as it is.",
        "step/stats_finish.cpp",
        "    if (row.nonfinite != 0) {\n      TensorSum sum;",
        "    if (row.nonfinite != 0 && !is_elsewhere()) {\n      TensorSum sum;",
    ),
    lane(
        "a-tied-copy-is-not-hashed",
        "The hash of a box leaves tied copies of it out, so that another node does not hear that one differs.",
        "loaded/compared_boxes.cpp",
        "        of_box.insert(of_box.end(), tied->second.begin(), tied->second.end());\n",
        "",
    ),
    lane(
        "a-copy-stands-for-its-weight",
        "A node without a gradient of a box has the hash of one that has it, because a tied copy of it has one.",
        "step/node_rows.cpp",
        "    return counted || !copy ? hash_of_box(",
        "    return true ? hash_of_box(",
    ),
    peers(
        "a-copy-alone-is-no-gradient-missing",
        "A weight of which a tied copy on another node has a gradient is said to be unused.",
        "sums/node_sums.cpp",
        "    if (std::ranges::binary_search(copied, tensor)) {",
        "    if (copied.size() > plan.tensors.size()) {",
    ),
    lane(
        "a-box-that-differs-here-looks-alike-elsewhere",
        "Two nodes with the same two values in unequal numbers do not hear that most ranks have the other.",
        "stats/box_hash.cpp",
        "distinct == 1 ? hash : ",
        "distinct != 0 ? hash : ",
    ),
    peers(
        "values-of-other-nodes-are-not-counted",
        "A NaN that only a copy on another node has makes the norm NaN and found_inf false.",
        "sums/copies_of_nodes.cpp",
        "      nonfinite_[rows.front().tensor] += all - counted;\n",
        "",
    ),
    job(
        "vote-before-voted",
        "A node votes before its record says so: its ranks make a step again that the other nodes did.",
        "job_end.cpp",
        "      record_->vote(voted.word);\n",
        "      (void)voted;\n",
    ),
    job(
        "a-doubt-waits-for-all-ranks",
        "A rank in doubt hears what came of its step only when all ranks of its node have declared.",
        "job_declare.cpp",
        "    perform(TellLocals{false});",
        "    (void)TellLocals{false};",
    ),
    job(
        "the-ruled-step-is-not-the-last",
        "Policies go on from the step before the one that the nodes did.",
        "job_peers.cpp",
        "    rank.last_done = rank.doubt;",
        "    (void)rank;",
    ),
    step(
        "a-local-retry",
        "A node fails an attempt by itself and makes it again, while the others still wait in the one before.",
        "return fail(std::move(error), locals_.alone() || !open_);",
        "return fail(std::move(error), true);",
        "step_machine_fail.cpp",
    ),
    step(
        "an-attempt-before-the-epoch",
        "A call that times out before the epoch begins counts as an attempt of it, on its node alone.",
        "  if (open_ || locals_.alone()) {",
        "  if (attempt_ + 1 > 0) {",
    ),
    job(
        "pauses-stay-on-their-node",
        "Deadlines of other nodes run on while a rank of this one is paused.",
        "job_membership.cpp",
        "  tell_pauses();\n  follow_pauses();",
        "  follow_pauses();",
    ),
    job(
        "aborts-of-later-attempts-are-dropped",
        "A node whose lane is slow goes on with an attempt that the others have failed.",
        "job_peers.cpp",
        "event.word < word()",
        "event.word != word()",
    ),
)
