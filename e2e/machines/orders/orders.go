// Package orders has the messages between a test and the program in its virtual machine: lines of JSON over a serial port. Each
// order has one answer, in the same sequence.
package orders

import (
	"net/netip"
	"time"
)

// Kind is what the machine is to do.
type Kind string

// The kinds of orders.
const (
	Configure Kind = "configure" // sets up the network, by DHCP and router advertisements unless Static is set
	Fetch     Kind = "fetch"     // requests URL
	Resolve   Kind = "resolve"   // asks Address about Name
	Open      Kind = "open"      // connects to Address; the connection is called Name
	Exchange  Kind = "exchange"  // writes Text to the connection Name, and reads as many bytes
	Await     Kind = "await"     // reads from the connection Name until it ends
	Send      Kind = "send"      // sends Frames
	Heard     Kind = "heard"     // returns the frames that have arrived
	PowerOff  Kind = "poweroff"  // ends the machine; it does not answer
)

// Order is a message to the machine.
type Order struct {
	Kind    Kind
	Clock   time.Time `json:",omitzero"` // Configure: the time
	Static  *Network  `json:",omitempty"`
	Network string    `json:",omitempty"` // of package net, such as tcp4
	Address string    `json:",omitempty"` // IP address and port
	Name    string    `json:",omitempty"`
	Text    string    `json:",omitempty"`
	URL     string    `json:",omitempty"`
	Roots   string    `json:",omitempty"` // Fetch: certificates in PEM that the client trusts
	Frames  [][]byte  `json:",omitempty"` // Ethernet frames
	// Header: each of Frames begins with the header of virtio (struct virtio_net_hdr, 10 bytes), which asks the network card for
	// checksums and segments.
	Header bool `json:",omitempty"`
	MTU    int  `json:",omitempty"` // Send: of the interface meanwhile
}

// Answer is the machine's answer to an order.
type Answer struct {
	Error   string   `json:",omitempty"` // why it failed; empty if it succeeded
	Timeout bool     `json:",omitempty"` // it failed because nothing happened for a minute
	Network *Network `json:",omitempty"` // Configure
	Status  int      `json:",omitempty"` // Fetch: of the response; Resolve: the response code of DNS
	Text    string   `json:",omitempty"` // Fetch: the beginning of the body; Exchange: the bytes read
	Addrs   []netip.Addr
	Frames  [][]byte `json:",omitempty"`
}

// Network is the configuration of the machine's interface.
type Network struct {
	Addresses []netip.Prefix
	Routers   []netip.Addr // next hops of the default routes
	DNS       []netip.Addr
	MTU       int // 0: the interface's own
}
