"""What the control plane answers, as types. Fields that a newer one adds are left out."""
