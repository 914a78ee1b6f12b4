package api

// Capacity is the use of the gateway's bounded resources.
type Capacity struct {
	Listeners   []ListenerState // every listener that the gateway serves
	Places      []PlaceState    // resources shared by all boxes or by all visitors
	Descriptors PlaceState      // open files of the process
}

// ListenerState is the state of one listener.
type ListenerState struct {
	Name        string // such as "urls_https"; docs/metrics.md lists them
	Address     string
	Accepts     bool // whether it accepted a connection that the gateway made to it in the last few seconds
	Connections int  // accepted and still open
	Limit       int  // of Connections; 0: connections are limited per box or peer only
}

// PlaceState is the use of one bounded resource.
type PlaceState struct {
	Name  string
	Used  int
	Limit int // 0: no limit
}
