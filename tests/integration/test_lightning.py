"""Lightning with automatic optimisation: a run that is resumed has the same losses."""

import warnings

import pytest
import torch

import moga


@pytest.fixture
def train(tools, data, recipe, tmp_path):
    """Losses and trainer of a run with fresh objects; one epoch is ten batches."""
    import pytorch_lightning as lightning  # seconds, which collecting the tests need not take

    class Module(lightning.LightningModule):
        def __init__(self, run):
            super().__init__()
            self.model = run.model

        def training_step(self, batch, index):
            return self.model(**batch).loss

        def configure_optimizers(self):
            optimizer = moga.optimizer(self, recipe, lr=0.1, weight_decay=0.1)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def run(epochs, seed=0, resume=None, **options):
        own = tools.Run(seed)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **options,
        )
        loader = torch.utils.data.DataLoader(data[:40], batch_size=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few workers, no logger: both on purpose
            trainer.fit(Module(own), loader, ckpt_path=resume, weights_only=True)
        return own.losses, trainer

    return run


def test_a_resumed_run_has_the_same_losses(train, tmp_path):
    whole, _ = train(2)
    assert len(whole) == 20 and sum(whole[-4:]) < 0.9 * sum(whole[:4])
    begun, trainer = train(1)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, trainer = train(2, seed=1, resume=str(tmp_path / "half.ckpt"))
    assert begun + resumed == pytest.approx(whole, abs=1e-6)
    [optimizer] = trainer.optimizers
    assert isinstance(optimizer, moga.SteepestDescent)
    assert all(group["lr"] == pytest.approx(0, abs=1e-9) for group in optimizer.param_groups)
