// Package enclosure tests `gateway run`: commands of the host, each under its own gateway, with the test internet.
package enclosure
