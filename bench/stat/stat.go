// Package stat has the statistics of the benchmarks: medians, per-round ratios, and a histogram of latencies.
package stat

import (
	"math"
	"slices"
)

// Median returns the median of the values, or NaN if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Ratio compares two programs over the rounds in which both were measured.
type Ratio struct {
	Median, Low, High float64
	Rounds            int
}

// Ratios divides a by b round by round. If the machine is slower in one round, both programs are, which a ratio of two
// medians would not show.
func Ratios(a, b map[int]float64) Ratio {
	var all []float64
	for round, over := range a {
		if under, ok := b[round]; ok && under > 0 {
			all = append(all, over/under)
		}
	}
	if len(all) == 0 {
		return Ratio{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	return Ratio{Median: Median(all), Low: slices.Min(all), High: slices.Max(all), Rounds: len(all)}
}
