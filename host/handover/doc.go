// Package handover is how one process of the gateway takes the place of another: what the two say to each other over a socket
// pair, with the sockets of the gateway as they are passed on.
//
// The old process starts the new one and greets it with its sockets (Hello). The new one checks the host and its
// configuration, and is Prepared. The old one lets go of what only one process can have, the store above all, while it goes
// on serving (Yours). The new one opens everything, serves, and says so (Serving); the old one stops accepting (Stopped).
// Until then either may fail, and the old process stays, or has another take its place. From then on the new one tells the
// old one what must not go on (Cut, Policy, URL, Secret, Keys), and waits for each Done.
package handover
