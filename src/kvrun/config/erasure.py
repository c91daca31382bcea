"""``[erasure]``: how long an erasure waits for an engine, and what backups exist of its box."""

from kvrun.config.values import Section, setting


class ErasureSection(Section):
    """Erasure and its certificates."""

    engine_deadline_s: int = setting(
        30,
        "Longest wait for engines to confirm that they zeroed an erased session's pages (seconds); "
        "the certificate names those that did not.",
        ge=1,
        le=600,
    )
    root_snapshot_days: int | None = setting(
        None,
        "Days for which snapshots or backups of the key root are kept (0: there are none); "
        "certificates say when the last one has expired. Unset: not declared, and an OpenBao or "
        "PKCS#11 root then ends an erasure with a deletion record only.",
        ge=0,
        le=36_500,
    )
    machine_snapshot_days: int = setting(
        0,
        "Days for which images of the whole machine are kept, disk or memory.",
        ge=0,
        le=36_500,
    )
