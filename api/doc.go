// Package api is the admin API of the gateway as Go programs see it: the types of the calls, their kinds of error, and [Client],
// which makes calls for the command line.
//
// The API is the REST dialect of the Upstash Box SDK (npm @upstash/box) and, on the same tree, what the gateway adds to it.
// The packages below serve the calls over HTTP: api/server puts together the endpoints, which lie by subject in api/boxes,
// api/exec, api/rules, api/egress, api/urls and others. Each declares the interface of the service that answers its calls. Every
// method of such an interface may be called concurrently and must respect its context. A [policy.BoxID] is always a [Box.ID] that an
// earlier call returned; if the box has gone since, the error is an [ErrNotFound]. An error made by [Errorf] is shown to the caller
// with the status of its kind; a *[document.InvalidError] becomes a 422 with its pointers; any other error is logged and answered
// with a 500 without detail.
//
// The endpoints decode strictly (an unknown, duplicate or mistyped field is
// answered with 422 and a JSON pointer, never dropped), check the key, the Host and the Origin of every request, and map the
// errors of the services to statuses in one place. They keep nothing but the latest runs and log lines of each box, in memory and
// bounded.
package api
