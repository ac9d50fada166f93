"""What `defer=True` refuses: a typed error that names the option, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drop_ins import Norms, backward, copies, net
from emulated import Stream, begin, clip, same_bits

import gradsync
import gradsync.torch as gst
from gradsync.errors import UsageError
from gradsync.torch._reduced import _deferral
from gradsync.torch._statistics import _measurer

REFUSED = [
    ({"mode": "observe"}, "mode observe multiplies nothing; leave defer out"),
    ({"divergence": "raise"}, "divergence='raise' raises before .*divergence='report'"),
    ({"weights_every": 10}, "weights are compared .*weights_every=0"),
    ({"clip": gradsync.Clip(nonfinite="raise")}, r"Clip\(nonfinite='raise'\).*'zero' or 'propagate'"),
    ({"clip": gradsync.Clip(spike="raise")}, r"Clip\(spike='raise'\).*give spike='clip'"),
    ({"defer": "yes"}, r"init\(defer='yes'\): give False, True or 'unmeasured'"),
]


class TestRefusals:
    @pytest.mark.usefixtures("stream")
    @pytest.mark.parametrize(("options", "said"), REFUSED, ids=lambda one: str(one))
    def test_what_needs_the_host_is_refused(self, daemon: Any, options: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            begin(daemon, net(), **options)
        assert not daemon.of("gradients.declare")

    @pytest.mark.usefixtures("stream")
    def test_weights_that_are_not_checked_need_no_host(self, daemon: Any) -> None:
        begin(daemon, net(), weights_every=1000, check_weights=False)

    def test_mode_off_defers_nothing(self, daemon: Any) -> None:
        model = net()
        begin(daemon, model, mode="off")
        backward(model)
        assert clip(model).item() > 0

    def test_a_device_that_was_not_measured_has_to_be_asked_for(
        self,
        daemon: Any,
        norms: Norms,
        stream: Stream,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(_deferral, "_MEASURED", frozenset())
        with pytest.raises(UsageError, match="was not measured on cpu; give defer='unmeasured' to try it"):
            begin(daemon, net())
        model = net()
        begin(daemon, model, defer="unmeasured")
        backward(model)
        clip(model)
        assert gst.last_report().step == 0
        stream.wait()

    def test_without_the_kernels_there_is_nothing_to_defer(
        self,
        daemon: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(_measurer, "kernel_library", lambda: None)
        with pytest.raises(
            UsageError, match=r"the kernels must measure all gradients.* torch does; see GRADSYNC_KERNELS"
        ):
            begin(daemon, net())

    @pytest.mark.usefixtures("stream")
    def test_a_rank_without_parameters_has_no_stream_to_wait(self, daemon: Any) -> None:
        with pytest.raises(UsageError, match="give defer=False on this rank"):
            begin(daemon, [])

    @pytest.mark.usefixtures("stream")
    def test_a_device_that_cannot_wait_says_so(self, daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRADSYNC_SIMT_NO_MEMOPS", "1")
        with pytest.raises(UsageError, match="cuStreamWaitValue64: CUDA error 801; give defer=False"):
            begin(daemon, net())

    @pytest.mark.usefixtures("norms")
    def test_calls_that_return_a_result_to_the_host_are_refused(self, daemon: Any, stream: Stream) -> None:
        model = net()
        session = begin(daemon, model)
        backward(model)
        before, gradients = copies(model), [p.grad for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters())
        with pytest.raises(UsageError, match=r"a GradScaler needs the result .*bfloat16"):
            clip(model, scaler=torch.amp.GradScaler("cpu"), optimizers=optimizer)
        with pytest.raises(UsageError, match="error_if_nonfinite=True needs the result"):
            clip(model, error_if_nonfinite=True)
        with pytest.raises(UsageError, match=r"get_total_norm\(\) needs the result .*clip_grad_norm_\(\) alone"):
            gst.get_total_norm(gradients)
        with pytest.raises(UsageError, match=r"clip_grads_with_norm_\(\) needs the result"):
            gst.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(1.0))
        with pytest.raises(UsageError, match=r"pause\(\) needs the result"):
            session.pause()
        stream.wait()
        assert same_bits(copies(model), before)
        assert not daemon.of("step.finish")

    @pytest.mark.usefixtures("norms")
    def test_gradients_that_the_kernels_cannot_read_are_named(self, daemon: Any, stream: Stream) -> None:
        model = net()
        begin(daemon, model)
        backward(model)
        weight = model.get_parameter("2.weight")
        assert weight.grad is not None
        weight.grad = torch.cat([weight.grad, weight.grad], 1)[:, ::2]
        with pytest.raises(UsageError, match=r"cannot read the gradient of '2\.weight', which has gaps .*\(1 such\)"):
            clip(model)
        assert not daemon.of("step.finish")
        weight.grad = weight.grad.contiguous()
        clip(model)
        assert gst.last_report().step == 0
        stream.wait()
