"""`stepscope accel estimate` and `stepscope accel score`, as a person types them."""


def test_a_layer_is_estimated_as_timeloop_prints_it(stepscope):
    layer = "C=64,M=64,P=32,Q=32,R=3,S=3,stride=1"
    found = stepscope("accel", "estimate", "--layer", layer, "--spatial", "8x16", "--json").json
    assert round(found["energy_uj"], 2) == 480.00
    assert found["cycles"] == 294_912


def test_a_network_is_estimated_layer_by_layer(stepscope):
    found = stepscope("accel", "estimate", "lenet", "--json").json
    assert len(found["layers"]) == 5
    assert found["cycles"] == sum(layer["cycles"] for layer in found["layers"])
    assert found["peak_activation_at"] == "features.0"
    shown = stepscope("accel", "estimate", "lenet").out
    assert "Counted as free: 4 ReLU" in shown


def test_the_energy_of_every_layer_and_level_is_drawn(stepscope):
    answer = stepscope(
        "accel", "estimate", "efficient:s2d4_w16-32", "--chart", "energy.svg", "--json"
    )
    assert "chart: energy.svg" in answer.err
    drawn = (stepscope.folder / "energy.svg").read_text()
    words = [*("dram", "buffer", "scratchpad", "registers", "mac"), "classifier"]
    assert [word for word in words if word not in drawn] == []
    assert len(answer.json["layers"]) == 4


def test_the_published_solution_scores_90(stepscope):
    figures = "--accuracy 0.7966 --energy-mj 0.32204 --cycles 46344 --peak-activation-bytes 98304"
    assert stepscope("accel", "score", *figures.split(), "--json").json["points"] == 90
