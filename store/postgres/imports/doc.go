// Package imports moves the rows of a jobs table of any shape into Leasehold.
//
// A mapping file names the table, and says with SQL expressions over its rows what the jobs are
// made of. Rows are taken in order of their key, in batches, each in a transaction of its own:
// the row is locked, its job is stored, it is noted in leasehold.imported_jobs that it was taken
// over, and it is deleted where the mapping says so. So an import that is killed has done whole
// batches, and one that is run again goes on where the other stopped: a row that was noted is
// never taken again, and none is lost, because a row that cannot be taken stays where it is.
//
//	read a page of keys ─► lock and read its rows ─► leasehold.import_job, row by row ─► commit
//	                          │ an expression fails           │ LEASED, BAD
//	                          └─► row by row                  └─► reported, left in the table
//
// A row that another system works on at the moment, under a lease that has not run out, is left
// as well: taken over, it would be worked on twice. It is taken by a later run.
package imports
