// Package selftest attacks the gateway from inside a box as a hostile program would, and reports whether anything got
// through.
//
// [Run] makes a list of attacks out of the policy in force: each knows where it aims, what the policy promises about
// it, what would be proof of a hole, and which decision must be logged. A process in the box's network namespace
// ([Serve], started by Run) sends the traffic: it is in the position of any process of the box, has no secrets and
// decides nothing. In the meantime Run watches every other interface of the host for packets of the probes, listens on
// canary ports of the host that no box may reach, and follows the decisions about the box. What came back, what left
// and what was logged make one line of the [Card] for each attack.
//
// The traffic is bounded and harmless: some packets to each target, none answered by more than a reset if the box is
// tight. Targets on the internet are addresses that nobody answers on; nothing is sent to them unless there is a hole.
package selftest
