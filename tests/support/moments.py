"""Ends a daemon in the middle of an erasure: at a step, before its state is written, or after."""

# The flag file holds "<state> before" or "<state> after"; the daemon takes it up once.
AT_A_STEP = """
from kvrun.erasure.job import JobStore
from kvrun.instance.erasing import InstanceSteps
step_flag = Path(sys.argv[1]).with_name("step")
NAMES = dict(tombstone="tombstoned", drain="drained", destroy="destroyed", scrub="scrubbed",
             unlink="unlinked", prove="proven", certify="certified")
def die_at(moment):
    try:
        if step_flag.read_text() == moment:
            step_flag.unlink()
            os.kill(os.getpid(), 9)
    except FileNotFoundError:
        pass
def around(name):
    original = getattr(InstanceSteps, name)
    def step(self, job):
        done = original(self, job)
        die_at(NAMES[name] + " before")
        return done
    setattr(InstanceSteps, name, step)
for name in NAMES:
    around(name)
save = JobStore.save
def saved(self, job):
    save(self, job)
    die_at(job.state.value + " after")
JobStore.save = saved
"""
