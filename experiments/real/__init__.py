"""Networks as people have them: trained elsewhere, compressed at defaults, beside plain competitors at equal bytes."""
