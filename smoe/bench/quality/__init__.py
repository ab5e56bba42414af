"""What lossy miss policies cost: teacher-forced perplexity one token a step, beside the gate mass they substitute."""
