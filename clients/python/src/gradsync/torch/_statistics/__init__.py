"""What one rank measures in its gradients: sums of powers, maxima, counts and fingerprints."""
