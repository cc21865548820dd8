/* Commits to one managed table: staged, recorded, finalized, acknowledged; a process may stop before any step.
 *
 * Two servers commit, a client that bypasses the catalog puts a manifest straight into storage, and in the end a
 * server that comes later finds what is left. Promised at every moment:
 *   - an acknowledged version has its writer's manifest, and keeps it (nothing acknowledged is lost or replaced);
 *   - a recorded version becomes final, unless a client that bypassed the catalog had its number first;
 *   - storage has no gaps, and a table in which processes stopped can be committed to.
 */
#define NONE 0
#define BYPASS 3
#define VERSIONS 3
#define TRIES 2

byte record[VERSIONS + 2];  /* the catalog: whose staged manifest a version is */
byte final[VERSIONS + 2];   /* storage: whose manifest has the version's final name */
byte acked[VERSIONS + 2];   /* who was told that this version is theirs */
byte ended;

mtype = { STOP, READ_PENDING, FIND_UNFINISHED, PUT, ROLL_BACK, FIND_LATEST, VALIDATE, RECORD, ACKNOWLEDGE };
#define five(of) (of[1] + 5 * of[2] + 25 * of[3])
#define abstract (five(record) + 125 * five(final) + 15625 * five(acked))
#include "steps.h"

/* finalize_pending (tables/commits/finalizing.py): each version that is recorded and not final gets its final name;
 * the records are read at once, the manifests one by one */
inline finalize_pending() {
    atomic { read[1] = record[1]; read[2] = record[2]; read[3] = record[3]; step(_pid, READ_PENDING, 0) };
    v = 1;
    do
    :: v <= VERSIONS ->
        atomic {
            mine = read[v];
            lost = (mine != NONE && final[v] != mine);
            if :: lost -> step(_pid, FIND_UNFINISHED, v) :: else fi
        };
        if
        :: lost -> may_stop; finalize()
        :: else
        fi;
        v++
    :: else -> break
    od
}

/* finalize (tables/commits/finalizing.py): put if absent; where somebody else's has the name, roll the record back */
inline finalize() {
    atomic {
#ifdef BROKEN_PUT_OVERWRITES
        if :: true -> final[v] = mine fi;
#else
        if :: final[v] == NONE -> final[v] = mine :: else fi;
#endif
        lost = (final[v] != mine);
        step(_pid, PUT, lost)
    };
    if
    :: lost ->
        may_stop;
        atomic {
            if
            :: record[v] == mine -> record[v] = NONE; assert(final[v] == BYPASS)
            :: else
            fi;
            step(_pid, ROLL_BACK, 0)
        }
    :: else
    fi
}

/* latest_stored_version (tables/versions/records.py): the newest version that storage has */
inline find_latest() {
    atomic {
        v = 0;
        do :: v < VERSIONS && final[v + 1] != NONE -> v++ :: else -> break od;
        step(_pid, FIND_LATEST, v)
    }
}

/* record_versions (tables/commits/recording.py): one statement; the unique key of the records decides who is first */
inline record_version() {
    atomic {
#ifdef BROKEN_RECORD_REPLACES
        if :: true -> record[v] = me; lost = false fi;
#else
        if :: record[v] == NONE -> record[v] = me; lost = false :: else -> lost = true fi;
#endif
        step(_pid, RECORD, lost)
    }
}

/* validate_version (tables/commits/validation.py): storage has the version before, and not this one; right after a commit
 * of its own a server may leave out the look for this one, which finalizing meets. Servers that are replayed do not: they
 * mark their versions at once. */
inline validate() {
    atomic {
        lost = !(v == 1 || final[v - 1] != NONE);
        if
        :: final[v] != NONE -> lost = true
#ifndef SELDOM
        :: v > 1
#endif
        :: else
        fi;
        step(_pid, VALIDATE, lost)
    }
}

/* create_table_version (tables/commits/commit.py): one commit by one server */
inline commit() {
#ifndef BROKEN_PENDING_IS_LEFT
    finalize_pending();
#endif
    find_latest();
    v++;
    done = false;
    if
    :: v > VERSIONS -> done = true
    :: else ->
        validate();
        may_stop;
        if
        :: !lost ->
            record_version();
#ifdef BROKEN_ACKNOWLEDGED_EARLY
            if :: !lost -> acked[v] = me :: else fi;
#endif
            may_stop;
            if
            :: !lost ->
                mine = me;
                finalize();
                may_stop;
                if
                :: !lost -> atomic { assert(acked[v] == NONE || acked[v] == me); acked[v] = me; done = true;
                                      step(_pid, ACKNOWLEDGE, 0) }
                :: else
                fi
            :: else
            fi
        :: else
        fi
    fi
}

proctype Server(byte me) {
    byte v, mine, tries, read[VERSIONS + 1];
    bool lost, done;
    do
    :: tries < TRIES -> commit(); tries++
    :: else -> break
    od;
stopped:
    ended++
}

/* No function of ours: what a client does that writes straight to storage, as Lance's own commits are. */
proctype Bypass() {
    byte v;
    find_latest();
    v++;
    atomic {
        if
        :: v <= VERSIONS && final[v] == NONE -> final[v] = BYPASS; acked[v] = BYPASS; step(_pid, PUT, 0)
        :: else
        fi
    };
    ended++
}

/* A server that comes when all others have ended: it commits at the first try, whatever they left. */
proctype Later(byte me) {
    byte v, mine, read[VERSIONS + 1];
    bool lost, done;
    ended == 3;
    find_latest();
    if
    :: v < VERSIONS -> commit(); assert(done)
    :: else -> finalize_pending()
    fi;
    v = 1;
    do
    :: v <= VERSIONS -> assert(record[v] == NONE || record[v] == final[v]); v++
    :: else -> break
    od;
stopped:
    skip
}

#define kept(v) (acked[v] == NONE || acked[v] == final[v])

init { atomic { run Server(1); run Server(2); run Bypass(); run Later(4) } }

#ifndef HISTORY
ltl promised { [] (kept(1) && kept(2) && kept(3) && (final[2] == NONE || final[1] != NONE)
                   && (final[3] == NONE || final[2] != NONE)) }
#endif
