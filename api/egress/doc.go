// Package egress serves the decisions about what boxes reach: those that were made, as they are made, and what a decision
// would be.
package egress
