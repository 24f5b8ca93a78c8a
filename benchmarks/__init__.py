"""Speed and size beside peers and limits: read ratios, the machine is shared and noisy."""
