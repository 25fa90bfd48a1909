"""What is shown while an image comes: bytes where Docker tells sizes, else layers."""

from scheduler.engines.docker.images import Layers


def line(status: str, id_: str = "", **detail: int) -> dict[str, object]:
    return {"status": status, **({"id": id_} if id_ else {}), **({"progressDetail": detail} if detail else {})}


def test_bytes_of_all_layers_are_added_up() -> None:
    layers = Layers()
    progress = [
        layers.progress(line("Pulling from library/x", "latest")),
        layers.progress(line("Downloading", "a", current=1 << 20, total=4 << 20)),
        layers.progress(line("Downloading", "b", current=1 << 20, total=2 << 20)),
    ]
    assert progress == ["Pulling from library/x", "1.0 of 4.0 MiB", "2.0 of 6.0 MiB"]


def test_layers_are_counted_where_no_sizes_are_given() -> None:
    """So it is with containerd's image store, and with small layers."""
    layers = Layers()
    lines = [
        line("Pulling fs layer", "a"), line("Pulling fs layer", "b"), line("Download complete", "a"),
        line("Pull complete", "a"), line("Already exists", "b"), line("Status: Downloaded newer image"),
    ]  # fmt: skip
    assert [layers.progress(each) for each in lines] == [
        "0 of 1 layers", "0 of 2 layers", "1 of 2 layers", "", "2 of 2 layers", "Status: Downloaded newer image",
    ]  # fmt: skip
