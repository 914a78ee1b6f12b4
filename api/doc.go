// Package api is the admin API of the gateway as Go programs see it: [Host], which owns the boxes and answers the calls, with
// its types and kinds of error, and [Client], which makes calls for the command line.
//
// The API is the REST dialect of the Upstash Box SDK (npm @upstash/box) and, on the same tree, what the gateway adds to it.
// The packages below serve a Host over HTTP: api/server puts together the endpoints, which lie by subject in api/boxes,
// api/exec, api/rules, api/egress, api/urls and api/gateway. They decode strictly (an unknown, duplicate or mistyped field is
// answered with 422 and a JSON pointer, never dropped), check the key, the Host and the Origin of every request, and map the
// errors of the Host to statuses in one place. They keep nothing but the latest runs and log lines of each box, in memory and
// bounded.
package api
