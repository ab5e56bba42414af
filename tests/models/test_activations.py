import torch

from smoe.models.activations import sigmoid


def test_sigmoid_rounds_a_value_alike_wherever_it_lies() -> None:
    x = torch.randn(4099, generator=torch.Generator().manual_seed(0)) * 3
    together = sigmoid(x)
    for step in (1, 7, 33):
        assert torch.equal(torch.cat([sigmoid(part) for part in x.split(step)]), together)
    torch.testing.assert_close(together, torch.sigmoid(x), rtol=1e-6, atol=0)


def test_sigmoid_of_the_largest_numbers() -> None:
    x = torch.tensor([-torch.inf, -200.0, 200.0, torch.inf])
    assert sigmoid(x).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert sigmoid(torch.tensor([torch.nan])).isnan().all()
