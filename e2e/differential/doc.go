// Package differential compares what clients see of servers without the gateway, spliced and intercepted. Its table has one row for
// each server: a report that something works without the gateway and not through it is a new row.
//
// Each row is asked by the same clients from three boxes:
//
//   - direct: the policy opens the addresses, which the kernel forwards. No process of the gateway sees a byte;
//   - spliced: the policy opens the names, and the gateway passes TLS on unread;
//   - intercepted: a header rule covers the names.
//
// Each box trusts the authority alone that its way must show: a connection that goes another way fails. What a client sees must be the
// same on each way, or be in the table of docs/limits.md with the reason and the way out. Spliced connections never differ.
package differential
