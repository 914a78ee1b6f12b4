// Package differential compares the behaviour that clients observe without the gateway, spliced and intercepted. Its
// table has one row per server. A report that something works only without the gateway becomes a new row.
//
// The same clients send each row's requests from three boxes:
//
//   - direct: the policy opens the addresses, which the kernel forwards. No process of the gateway sees a byte;
//   - spliced: the policy opens the names, and the gateway passes TLS on unread;
//   - intercepted: a header rule covers the names.
//
// Each box trusts only the authority that its path must present, so a connection on another path fails. The results
// must be equal on each path, or be listed in the table of docs/limits.md with the reason and the workaround. Spliced
// connections never differ.
package differential
