"""Forecast a run on other ranks and hosts from a short run here, or from a finished one."""
