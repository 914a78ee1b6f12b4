// Package bench compares boxgate with its peers. Every benchmark runs boxgate and the peer on the same work in one run,
// since absolute figures of a shared machine mean nothing; what counts is the ratio. Run it by `make bench`, and with
// -count=5 for a median.
//
// Client, gateway and upstream share one process here, so the figures include all three: the difference between two rows
// is the difference between two gateways, the row "direct" is what the harness itself costs.
package bench
