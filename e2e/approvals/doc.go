// Package approvals tests that boxes can ask for access and get it from outside, and that asking alone opens nothing. The tests
// use the endpoint of the gateway in boxes as agents do, and the command line and the API as people who answer do.
package approvals
