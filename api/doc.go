// Package api defines the admin API of the gateway for Go programs: the types of the calls, their kinds of error, and
// [Client], which makes calls for the command line.
//
// The API is the REST dialect of the Upstash Box SDK (npm @upstash/box), with the gateway's own endpoints in the same
// tree. The packages below serve the calls over HTTP: api/server assembles the endpoints of api/boxes, api/exec,
// api/rules, api/egress, api/urls and others. Each of these packages declares the interface of the service behind it.
// Every method of such an interface may be called concurrently and must respect its context. A [policy.BoxID] is always a
// [Box.ID] that an earlier call returned; if that box no longer exists, the error is an [ErrNotFound]. An error made by
// [Errorf] is shown to the caller with the status of its kind; a *[document.InvalidError] becomes a 422 with its
// pointers; any other error is logged and answered with a 500 without detail.
//
// The endpoints decode strictly (an unknown, duplicate or mistyped field is answered with 422 and a JSON pointer, never
// dropped), check the key, the Host and the Origin of every request, and map errors to statuses in one place. Their only
// state is the latest runs and log lines of each box, in memory and bounded.
package api
