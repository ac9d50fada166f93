"""Faults in the messages between nodes: whose bytes are taken for whose, and when memory is left alone."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["WIRE"]


def wire(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "wire", f"service/device/wire/{file}", old, new)


WIRE = (
    wire(
        "any-name-of-that-size",
        "A message of another attempt, bucket or number is taken, if it has the right size.",
        "wire_reader.cpp",
        "  if (frame_ != expected) {",
        "  if (frame_.bytes != expected.bytes) {",
    ),
    wire(
        "any-size-of-that-name",
        "A message of another size is read as far as it is expected.",
        "wire_reader.cpp",
        "  const WireFrame expected = frame_of(front.message, front.bytes.size());",
        "  const WireFrame expected = frame_of(front.message, frame_.bytes);",
    ),
    wire(
        "no-attempt-on-the-wire",
        "What is left of an attempt that failed is taken for the next one's.",
        "wire_frame.cpp",
        "  return {message.payload, message.tag, message.bucket, message.number, bytes};",
        "  return {message.payload, 0, message.bucket, message.number, bytes};",
    ),
    wire(
        "a-stranger-is-a-daemon",
        "Nobody looks whether the bytes are those of a daemon.",
        "wire_frame.cpp",
        "  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {",
        "  if (bytes.empty()) {",
    ),
    wire(
        "any-reserved-bytes",
        "Bytes that a later release may use are ignored by this one.",
        "wire_frame.cpp",
        "  if (bytes != write_frame(frame)) {",
        "  if (bytes.empty()) {",
    ),
    wire(
        "a-message-that-nobody-wanted",
        "A message for which no memory is given yet is skipped.",
        "wire_reader.cpp",
        "    reading_ = Reading::Nothing;",
        "    read();",
    ),
    wire(
        "one-connection-for-both",
        "A result waits behind partial sums that the other node has no room for.",
        "wire_connections.cpp",
        "  return payload == plan::Payload::Partial ? *partials : *results;",
        "  return payload == plan::Payload::Partial ? *partials : *partials;",
    ),
    wire(
        "sent-but-for-the-end",
        "A message counts as sent when as many bytes are written as it has, its frame among them.",
        "wire_writer.cpp",
        "  if (done_ < kFrameBytes + front.bytes.size()) {",
        "  if (done_ < front.bytes.size()) {",
    ),
    wire(
        "a-fault-of-one-connection",
        "Behind a fault the other connections go on.",
        "wire_connections.cpp",
        "    peer.partials->end.stop();\n",
        "",
    ),
    wire(
        "a-read-that-goes-on",
        "A read that has begun still writes to memory behind a fault.",
        "wire_end.hpp",
        "    socket.cancel(ignored);\n",
        "",
    ),
    wire(
        "an-end-that-is-not-seen",
        "A connection that the other node closed is read for ever.",
        "wire_reader.cpp",
        "  if (error) {",
        "  if (error && bytes > 0) {",
    ),
    wire(
        "nobody-is-woken",
        "The owner sleeps while its first message is done.",
        "wire_outcome.cpp",
        "  if (first) {",
        "  if (!first) {",
    ),
    wire(
        "a-silent-fault",
        "The owner sleeps while its connections are gone.",
        "wire_outcome.cpp",
        "    fault_ = std::move(fault);\n  }\n  wake_();",
        "    fault_ = std::move(fault);\n  }",
    ),
    wire(
        "a-slow-rank-is-a-dead-node",
        "The kernel ends a connection whose other end does not read for a while.",
        "wire_socket.cpp",
        "  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);\n",
        "",
    ),
    wire(
        "a-silence-without-an-end",
        "A connection that the network swallows is waited for until the deadline of the step.",
        "wire_watch.cpp",
        "  if (quiet_ > kLooksToGiveUp) {",
        "  if (quiet_ > 1000 * kLooksToGiveUp) {",
    ),
    wire(
        "a-question-without-an-answer",
        "A node whose ranks are late does not say that it is there.",
        "wire_reader.cpp",
        "      writer_.say(WireSignal::Here);\n",
        "",
    ),
    wire(
        "a-question-behind-a-message",
        "A node that holds a message does not say that it is there, and cannot read that it is asked.",
        "wire_watch.cpp",
        "  return held_ > 0 && held_ % kLooksToSignal == 0 ? Advice::Tell : Advice::Nothing;",
        "  return Advice::Nothing;",
    ),
)
