// Package selftest attacks the gateway from inside a box as a hostile program would, and reports whether anything got
// through.
//
// [Run] builds a list of attacks from the active policy. Each attack has a target, the policy's promise, the evidence
// that would prove a hole, and the decision that must be logged. A process in the box's network namespace ([Probe],
// started by Run) sends the traffic with the privileges of any process of the box. It has no secrets and makes no
// decisions. During the attacks Run watches every other interface of the host for packets of the probes, listens on
// canary ports of the host that no box may reach, and follows the decisions about the box. For each attack, the
// answers, the packets seen and the log entries make one line of the [Card].
//
// The traffic is bounded and harmless: a few packets to each target, answered by a reset at most if the box is tight.
// Targets on the internet are unused addresses. Packets reach them only if there is a hole.
package selftest
