// Package kube follows the resources BoxgatePolicy of a Kubernetes cluster: each valid one becomes a named policy.
//
// [Controller.Run] lists all resources and applies them, then watches for changes. It lists again whenever the watch ends, at the latest
// after resync, so that a lost event has no lasting effect. Only a complete list deletes: a resource that is absent from it, or a deletion
// that the watch reports, closes the policy. While the API server does not answer, all policies stay as they are.
//
// Everything that the API server sends is bounded: the size of a page and of an event, the resources that are considered for a
// policy, the statuses that are written in a second. The package holds no resource in memory, only the names of a list.
//
// The gateway needs the permissions list and watch for boxgatepolicies, and update for their status. The gateways of all nodes write
// the same status, at most once for each generation, and a gateway that cannot apply a valid policy adds itself to problems.
package kube
