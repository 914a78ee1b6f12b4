package api

import (
	"net/http"
	"reflect"
)

// route is one row of the API: what /openapi.json says and what the mux serves come from the same row.
type route struct {
	method, path string
	summary      string
	request      reflect.Type // of the JSON body; nil for none
	response     reflect.Type // of the JSON answer; nil if it is not JSON
	produces     []string     // media types of an answer that is not JSON
	query        []string     // the parameters that it takes; any other is refused
	status       int          // of success; 0: 200
	handle       func(a *API, w http.ResponseWriter, r *http.Request) (reply, error)
}

// routes is the whole API. It is filled by init because the handler of /openapi.json refers to it.
var routes []route

func init() {
	routes = []route{
		{method: "GET", path: "/healthz", summary: "Whether the process runs; needs no key", response: reflect.TypeFor[okView](), handle: (*API).healthz},
		{method: "GET", path: "/readyz", summary: "Whether boxes can be created and served; needs no key", response: reflect.TypeFor[okView](), handle: (*API).readyz},
		{method: "GET", path: "/openapi.json", summary: "This description", produces: []string{"application/json"}, handle: (*API).describeSelf},

		{method: "POST", path: "/v2/box", summary: "Create a box", status: 201, request: reflect.TypeFor[createBody](), response: reflect.TypeFor[boxView](), handle: (*API).createBox},
		{method: "POST", path: "/v2/box/attach", summary: "Attach an existing network namespace, process or container", status: 201, request: reflect.TypeFor[attachBody](), response: reflect.TypeFor[boxView](), handle: (*API).attachBox},
		{method: "POST", path: "/v2/box/{id}/detach", summary: "Take an attached box off the network and forget it", response: reflect.TypeFor[deletedView](), handle: (*API).detachBox},
		{method: "GET", path: "/v2/box", summary: "List the boxes", query: []string{"label"}, response: reflect.TypeFor[[]boxView](), handle: (*API).listBoxes},
		{method: "DELETE", path: "/v2/box", summary: "Delete several boxes; if one is unknown, none is deleted", request: reflect.TypeFor[deleteBody](), response: reflect.TypeFor[deletedView](), handle: (*API).deleteBoxes},
		{method: "GET", path: "/v2/box/{id}", summary: "One box, by ID or name", response: reflect.TypeFor[boxView](), handle: (*API).getBox},
		{method: "DELETE", path: "/v2/box/{id}", summary: "Delete a box", response: reflect.TypeFor[deletedView](), handle: (*API).deleteBox},
		{method: "GET", path: "/v2/box/{id}/status", summary: "The state of a box", response: reflect.TypeFor[statusView](), handle: (*API).getStatus},

		{method: "POST", path: "/v2/box/{id}/exec", summary: "Run a command and answer with its output", request: reflect.TypeFor[execBody](), response: reflect.TypeFor[execView](), handle: (*API).exec},
		{method: "POST", path: "/v2/box/{id}/exec-stream", summary: "Run a command and stream its output, then an exit event; with Accept: application/x-ndjson in frames that keep the streams apart",
			request: reflect.TypeFor[execBody](), produces: []string{"text/plain", "application/x-ndjson"}, handle: (*API).execStream},
		{method: "GET", path: "/v2/box/{id}/runs", summary: "The latest commands, newest first", response: reflect.TypeFor[runsView](), handle: (*API).listRuns},
		{method: "POST", path: "/v2/box/{id}/runs/{run}/cancel", summary: "Kill a running command", response: reflect.TypeFor[runView](), handle: (*API).cancelRun},
		{method: "GET", path: "/v2/box/{id}/logs", summary: "The log of a box", query: []string{"offset", "limit"}, response: reflect.TypeFor[logsView](), handle: (*API).getLogs},
		{method: "POST", path: "/v2/box/{id}/run", summary: "Run the built-in agent: always refused, this gateway has none", handle: (*API).runAgent},
		{method: "POST", path: "/v2/box/{id}/run/stream", summary: "Run the built-in agent: always refused, this gateway has none", handle: (*API).runAgent},

		{method: "GET", path: "/v2/box/{id}/config/network-policy", summary: "The policy in force, its version as ETag", response: reflect.TypeFor[policyView](), handle: (*API).getPolicy},
		{method: "PUT", path: "/v2/box/{id}/config/network-policy", summary: "Replace the policy; answers once it is in force everywhere", request: reflect.TypeFor[policyBody](), response: reflect.TypeFor[policyView](), handle: (*API).putPolicy},
		{method: "GET", path: "/v2/box/{id}/config/attach-headers", summary: "The box's header rules, without values", response: reflect.TypeFor[headersView](), handle: (*API).getHeaders},
		{method: "PUT", path: "/v2/box/{id}/config/attach-headers", summary: "Replace the box's header rules", request: reflect.TypeFor[headersBody](), response: reflect.TypeFor[headersView](), handle: (*API).putHeaders},
		{method: "PATCH", path: "/v2/box/{id}/config/attach-headers", summary: "Change the box's header rules for the given hosts; null removes a host's rule", request: reflect.TypeFor[headersBody](), response: reflect.TypeFor[headersView](), handle: (*API).patchHeaders},
		{method: "GET", path: "/v2/box/settings/attach-headers", summary: "The header rules of every box, without values", response: reflect.TypeFor[headersView](), handle: (*API).getGlobalHeaders},
		{method: "PUT", path: "/v2/box/settings/attach-headers", summary: "Replace the header rules of every box", request: reflect.TypeFor[headersBody](), response: reflect.TypeFor[headersView](), handle: (*API).putGlobalHeaders},
		{method: "PATCH", path: "/v2/box/settings/attach-headers", summary: "Change the header rules of every box for the given hosts; null removes a host's rule", request: reflect.TypeFor[headersBody](), response: reflect.TypeFor[headersView](), handle: (*API).patchGlobalHeaders},

		{method: "POST", path: "/v2/box/{id}/preview", summary: "Create the public URL of a port; credentials are shown only once", status: 201, request: reflect.TypeFor[urlBody](), response: reflect.TypeFor[urlView](), handle: (*API).createURL},
		{method: "GET", path: "/v2/box/{id}/preview", summary: "The public URLs of a box", response: reflect.TypeFor[urlsView](), handle: (*API).listURLs},
		{method: "DELETE", path: "/v2/box/{id}/preview/{port}", summary: "Delete a public URL and cut its connections", response: reflect.TypeFor[okView](), handle: (*API).deleteURL},

		{method: "GET", path: "/v2/box/{id}/egress", summary: "Decisions about a box", query: []string{"since", "follow", "denied", "after"}, produces: []string{"application/x-ndjson", "text/event-stream"}, handle: (*API).boxEvents},
		{method: "GET", path: "/v2/egress", summary: "Decisions about every box", query: []string{"since", "follow", "denied", "after"}, produces: []string{"application/x-ndjson", "text/event-stream"}, handle: (*API).allEvents},
		{method: "POST", path: "/v2/box/{id}/egress/explain", summary: "How the policy in force would decide; nothing is sent", request: reflect.TypeFor[explainBody](), response: reflect.TypeFor[decisionView](), handle: (*API).explain},
		{method: "POST", path: "/v2/box/{id}/selftest", summary: "Attack the gateway from inside the box; answers with a scorecard after a few seconds", response: reflect.TypeFor[selfTestView](), handle: (*API).selfTest},
		{method: "GET", path: "/v2/box/{id}/ca", summary: "The interception CA of a box", produces: []string{"application/x-pem-file"}, handle: (*API).boxCA},
		{method: "POST", path: "/v2/store/rotate-key", summary: "Encrypt the secrets of the store with a new key", request: reflect.TypeFor[storeKeyBody](), response: reflect.TypeFor[okView](), handle: (*API).rotateStoreKey},
		{method: "POST", path: "/v2/api-key/rotate", summary: "Replace the API keys by a new one, written to the state directory", request: reflect.TypeFor[apiKeyBody](), response: reflect.TypeFor[okView](), handle: (*API).rotateAPIKey},
		{method: "GET", path: "/v2/ca", summary: "The CA that signs public URLs", produces: []string{"application/x-pem-file"}, handle: (*API).ingressCA},
	}
}
