"""All claims of the front page of results: what a user gains, then what each paper says."""

from benchmarks.results.claim_list import delta, flics, forecast, osmd, power_of_choice, users

CLAIMS = (
    *users.CLAIMS,
    *osmd.CLAIMS,
    *power_of_choice.CLAIMS,
    *delta.CLAIMS,
    *flics.CLAIMS,
    *forecast.CLAIMS,
)
