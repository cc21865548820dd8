/* BatchCommitTables: versions of two tables recorded in one transaction of the catalog, then finalized one by one.
 *
 * A publication writes both tables; two others each read both and write one (withdrawals of a sum that both tables
 * make up). Processes stop before any step. Promised at every moment:
 *   - a reader that sees a publication in the table it reads first sees it in the table it reads next;
 *   - what stopped half way is finished by whoever reads next: all of a batch or nothing of it;
 *   - with CheckTableVersion for what was only read, batches behave as one after the other (no write skew).
 */
byte recorded[2];            /* the newest version of each table in the catalog */
byte finals[2];              /* the newest version of each table in storage */
byte value_at[10];           /* of table * 5 + version: what the version holds */
bool begun;
byte version_of[2];          /* the publication's version in each table, once it is recorded */
byte ended;

mtype = { STOP, READ_PENDING, FIND_UNFINISHED, PUT, READ, VALIDATE, RECORD, BEGIN_0, BEGIN_1 };
#define five(of) (of[0] + 5 * of[1])
#define latest_values (value_at[recorded[0]] + 2 * value_at[5 + recorded[1]])
#define abstract (five(recorded) + 25 * five(finals) + 625 * latest_values)
#include "steps.h"

/* finalize_pending (tables/commits/finalizing.py): what is recorded gets its final name, in the order of versions; the
 * records are read at once, the manifests one by one */
inline finalize_pending(table) {
    atomic { at = finals[table]; last = recorded[table]; step(_pid, READ_PENDING, table) };
    do
    :: at < last ->
        atomic {
            at++;
            is_unfinished = (finals[table] < at);
            if :: is_unfinished -> step(_pid, FIND_UNFINISHED, at) :: else fi
        };
        if :: is_unfinished -> may_stop; is_unfinished = false; put(table, at) :: else fi
    :: else -> at = 0; last = 0; break
    od
}

inline put(table, version) { atomic { if :: finals[table] < version -> finals[table]++ :: else fi; step(_pid, PUT, table) } }

/* open_for_reading (tables/opening.py): a reader finalizes what is pending before it opens the latest version */
inline read_table(table, version) {
#ifndef BROKEN_READER_TRUSTS_STORAGE
    finalize_pending(table);
#endif
    atomic { version = finals[table]; step(_pid, READ, version) }
}

/* validate_versions (tables/commits/validation.py): storage does not have the versions yet */
inline validate(is_taken) { atomic { done = !(is_taken); step(_pid, VALIDATE, !done) } }

/* batch_commit_tables (tables/commits/batch_commit.py): the point of no return is the transaction, which refuses the batch
 * if any of its versions is taken */
inline record_both() {
#ifdef BROKEN_TWO_TRANSACTIONS
    done = false;
    atomic {
        if
        :: recorded[0] == base0 -> recorded[0]++; version_of[0] = recorded[0]; value_at[recorded[0]] = 1; done = true
        :: else
        fi;
        step(_pid, RECORD, !done)
    };
    may_stop;
    atomic {
        if
        :: done && recorded[1] == base1 -> recorded[1]++; version_of[1] = recorded[1]; value_at[5 + recorded[1]] = 1
        :: else -> done = false
        fi;
        step(_pid, RECORD, !done)
    }
#else
    atomic {
        done = (recorded[0] == base0 && recorded[1] == base1);
        if
        :: done ->
            recorded[0]++; version_of[0] = recorded[0]; value_at[recorded[0]] = 1;
            recorded[1]++; version_of[1] = recorded[1]; value_at[5 + recorded[1]] = 1
        :: else
        fi;
        step(_pid, RECORD, !done)
    }
#endif
}

/* _check_version (tables/commits/batch_commit.py): in the transaction, the table that was only read is as it was */
inline record_one(mine, my_base, other, other_base) {
#ifdef BROKEN_CHECK_BEFORE
    unchanged = (recorded[other] <= other_base);
    atomic {
#else
    atomic {
        unchanged = (recorded[other] <= other_base);
#endif
        done = (unchanged && recorded[mine] == my_base);
        if
        :: done -> recorded[mine]++; value_at[mine * 5 + recorded[mine]] = value_at[mine * 5 + my_base] - 1
        :: else
        fi;
        step(_pid, RECORD, !done)
    }
}

/* finalize_batch (tables/commits/finalizing.py): after the transaction; whoever stops here leaves it to the next reader */
inline finalize_batch() {
    put(0, base0 + 1);
    may_stop;
    put(1, base1 + 1)
}

proctype Publication() {
    byte base0, base1, at, last;
    bool done, is_unfinished;
    read_table(0, base0);
    read_table(1, base1);
    validate(finals[0] > base0 || finals[1] > base1);
    may_stop;
    if :: done -> record_both(); may_stop :: else fi;
    if :: done -> finalize_batch() :: else fi;
stopped:
    atomic { ended++; at = 0; last = 0; base0 = 0; base1 = 0; done = false; is_unfinished = false }
}

proctype Withdrawal(byte mine) {
    byte my_base, other_base, at, last;
    bool done, unchanged, is_unfinished;
    read_table(mine, my_base);
    read_table(1 - mine, other_base);
    if
    :: (value_at[mine * 5 + my_base] > 0 &&
        value_at[mine * 5 + my_base] + value_at[(1 - mine) * 5 + other_base] > 1) ->
        validate(finals[mine] > my_base);
        may_stop;
        if :: done -> record_one(mine, my_base, 1 - mine, other_base); may_stop :: else fi;
        if :: done -> put(mine, my_base + 1) :: else fi
    :: else
    fi;
stopped:
    atomic { ended++; at = 0; last = 0; my_base = 0; other_base = 0; done = false; unchanged = false; is_unfinished = false }
}

proctype Reader(byte first) {
    byte one, two, at, last;
    bool is_unfinished;
    atomic { if :: first == 0 -> step(_pid, BEGIN_0, 0) :: else -> step(_pid, BEGIN_1, 0) fi };
    read_table(first, one);
    read_table(1 - first, two);
    if
    :: version_of[first] != 0 && one >= version_of[first] ->
        assert(version_of[1 - first] != 0 && two >= version_of[1 - first])
    :: else
    fi;
stopped:
    skip
}

/* Everybody has ended: what is left of a batch is finished, and all or nothing of the publication is there. */
proctype Later() {
    byte at, last;
    bool is_unfinished;
    ended == 3;
    finalize_pending(0);
    finalize_pending(1);
    assert((version_of[0] != 0) == (version_of[1] != 0));
    assert(finals[0] >= version_of[0] && finals[1] >= version_of[1]);
stopped:
    skip
}

#define sum (value_at[recorded[0]] + value_at[5 + recorded[1]])

init {
    atomic {
        value_at[0] = 1; value_at[5] = 1; begun = true;
        run Publication(); run Withdrawal(0); run Withdrawal(1); run Later();
        if :: run Reader(0) :: run Reader(1) fi
    }
}

#ifndef HISTORY
ltl promised { [] (!begun || sum >= 1) }
#endif
