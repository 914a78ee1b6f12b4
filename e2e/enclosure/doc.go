// Package enclosure tests `gateway run`: commands of the host, each under a gateway of its own, with the test internet.
package enclosure
