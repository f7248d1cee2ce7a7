"""Show pictures, videos and sound to MiMo-V2.5 from Python, without a server.

    python examples/offline_omni.py                # the tiny model of this package, on a CPU
    python examples/offline_omni.py --model DIR    # a MiMo-V2.5 checkpoint
    python examples/offline_omni.py --image A.jpg --video B.mp4 --audio C.wav

The tiny model's towers are random: it reacts to what it sees and hears, but cannot name it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from PIL import Image

from vllm_mimo.media.audio import decode_audio
from vllm_mimo.serving import samples
from vllm_mimo.tiny.checkpoints import trained_folder

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
AUDIO = "<|mimo_audio_start|><|audio_pad|><|mimo_audio_end|>"
"""Where a medium stands in a prompt; `LLM.chat` writes these by itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(trained_folder()))
    parser.add_argument("--image", type=Path, help="default: a photograph")
    parser.add_argument("--video", type=Path, help="default: 5 s with sound")
    parser.add_argument("--audio", type=Path, help="default: 30 s of speech")
    args = parser.parse_args()
    # vLLM's CPU backend would take most of the machine's memory for KV. GPUs do not look at this.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    from vllm_mimo.multimodal.video_loader import MimoVideoLoader

    image = Image.open(args.image or samples.photo())
    # Frames, each with the container's own time, and the sound track at the model's rate.
    video = MimoVideoLoader.load_bytes(
        (args.video or samples.video()).read_bytes(), sampling={"audio_rate": 24_000}
    )
    samples_of_sound, rate = decode_audio((args.audio or samples.speech()).read_bytes())
    audio = (samples_of_sound.numpy(), rate)

    llm = LLM(model=args.model)
    greedy = SamplingParams(temperature=0, max_tokens=32)
    user, end = "<|im_start|>user\n", "<|im_end|><|im_start|>assistant\n<think></think>"
    requests = {
        "an image": (f"{user}{IMAGE}What is this?{end}", {"image": image}),
        "a video with sound": (f"{user}{VIDEO}What happens?{end}", {"video": video}),
        "speech": (f"{user}{AUDIO}What is said?{end}", {"audio": audio}),
        "all together": (
            f"{user}First {IMAGE}, then {VIDEO}, then {AUDIO}.{end}",
            {"image": image, "video": video, "audio": audio},
        ),
    }
    for title, (prompt, media) in requests.items():
        [output] = llm.generate(
            [{"prompt": prompt, "multi_modal_data": media}], greedy, use_tqdm=False
        )
        tokens = len(output.prompt_token_ids)
        print(f"\n{title}: {tokens} tokens, {output.num_cached_tokens} from the prefix cache")
        print(f"  {output.outputs[0].text.strip()!r}")
    print(f"\nframes were taken at {[round(t, 2) for t in video[1]['timestamps']]} s")


if __name__ == "__main__":  # vLLM starts processes that import this file again
    main()
