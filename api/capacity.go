package api

// Capacity is how much of what the gateway can hold is in use.
type Capacity struct {
	Listeners   []ListenerState // every listener that is served
	Places      []PlaceState    // what all boxes, and all visitors, share
	Descriptors PlaceState      // open files of the process
}

// ListenerState is one listener.
type ListenerState struct {
	Name        string // what it serves, such as "urls_https"
	Address     string
	Accepts     bool // a connection made to it within the last seconds was accepted
	Connections int  // open ones that it has accepted
	Limit       int  // of Connections; 0: each box has its own
}

// PlaceState is the use of one kind of place.
type PlaceState struct {
	Name  string
	Used  int
	Limit int // 0: there is none
}
