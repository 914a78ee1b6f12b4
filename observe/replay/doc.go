// Package replay asks two policies about the traffic that a box has had, and reports where they differ.
//
// [Run] takes the observations of a box, and the policy in force and a candidate, both compiled with all inputs of the box. Each
// observation is turned back into the questions that the gateway asked: [policy.Compiled.Decide] for DNS, the kernel's plan for
// packets, [policy.Compiled.Route] for connections and requests. Nothing is decided here.
//
// What cannot be asked again is counted with the reason ([Why]): traffic whose first bytes were never read, paths beyond the
// examples, messages in bodies, denials for reasons outside the policy. As a control, the policy in force must reproduce the
// verdicts that it gave; an observation for which it does not is not used.
package replay
