"""Facts about what the machine gives a run: cores, memory and its disk."""

from dataclasses import dataclass, field

from framework.measure.disk import DiskRate
from framework.measure.machine_watch import MachineUse

# Training that never ran would have an endless demand, and gain endlessly.
LEAST_CORES = 0.05
# The share of a step that removing all waiting for memory leaves, at least.
LEAST_LEFT = 0.1


@dataclass(frozen=True)
class MachineFacts:
    """What a run has of the machine, and how training went beside everything else.

    The gains are measured: training or computing with a change beside the same without it, in
    turn. They are 1 if there was no reason to try the change.
    """

    use: MachineUse = field(default_factory=lambda: MachineUse(1.0))  # during training
    num_threads: int = 1  # of torch, for one operator
    fewer_threads: int = 1  # that were tried
    fewer_threads_gain: float = 1.0  # of computing
    fewer_threads_cores: float = 1.0  # that computing with them kept busy
    opencv_threads: int = 1  # of OpenCV, for one call
    no_opencv_gain: float = 1.0  # of training, without OpenCV's threads
    all_cores: int = 1  # that the machine has
    allowed_cores: int = 1  # in the affinity mask
    all_cores_gain: float = 1.0  # of training on all cores
    quota_cores: float | None = None  # of the control groups; None without a quota
    memory_bytes: int = 1 << 40  # of the machine, or of the control groups if that is less
    free_memory_bytes: int = 1 << 40  # after training, cached files included
    in_group: bool = False  # whether a control group limits the memory
    disk: DiskRate | None = None  # None: no disk, or not a store with files

    @property
    def taken_cores(self) -> float:
        """The cores that other programs and other virtual machines keep busy."""
        return self.use.others_cores + self.use.stolen_cores

    @property
    def demand(self) -> float:
        """How many times the cores that training has it could use.

        Its threads that could run but have no core count, up to the cores of the affinity mask.
        """
        use = self.use
        wanted = min(float(self.allowed_cores), use.own_cores + use.waited_cores)
        return max(1.0, wanted / max(use.own_cores, LEAST_CORES))

    @property
    def undisturbed_gain(self) -> float:
        """The factor on the cores that training has if no other program took any.

        Others can give back no more than they take. The rest of what our threads wait for is each
        other.
        """
        return min(self.demand, 1 + self.taken_cores / max(self.use.own_cores, LEAST_CORES))

    @property
    def own_cores_gain(self) -> float:
        """The factor on computing if each thread of an operator had a core of its own.

        Beside other programs, threads also wait for each other. The CPU time of computing with
        fewer threads is what computing costs without that. All threads are taken to share it.
        """
        if self.fewer_threads >= self.num_threads:  # were not tried
            return 1.0
        cores = max(self.fewer_threads_cores, LEAST_CORES)
        return max(1.0, self.fewer_threads_gain * self.num_threads / cores)

    @property
    def swapped_bytes_per_s(self) -> float:
        return (self.use.swapped_in_bytes + self.use.swapped_out_bytes) / self.use.wall_s

    @property
    def unstalled_gain(self) -> float:
        """The factor on the training rate if no program waited for memory."""
        return 1 / max(1 - self.use.stalled_share, LEAST_LEFT)
