/* Appends of several servers to one table: queued in the catalog, committed together by the server with the turn.
 *
 * Two servers append one row each, and each may commit the other's. A turn is a lease that may end at any moment; a
 * commit may be made although its server gets an error. Promised:
 *   - a row is in one version at most, whoever commits it, and in exactly one once its caller has an answer;
 *   - a caller whose server goes on gets an answer.
 */
#define NONE 0
#define RETURNED 9
#define APPENDS 2

bool waits[APPENDS + 1];     /* the catalog has the append (of server 1, of server 2) */
byte version[APPENDS + 1];   /* the version that it was committed in; RETURNED: its own server has to commit it */
byte committed_by[APPENDS + 1];
byte turn;                   /* which server has the turn */
bool is_expired;
byte versions;               /* of the table, in the catalog */
byte finals;                 /* of them, those that storage has */
byte times_in[APPENDS + 1];  /* in how many versions the row is */

mtype = {
    STOP, QUEUE, CLAIM, GATHER, COMMIT, COMMIT_AWAY, CUT, RETURN, END_TURN, LOOK, DELETE, WITHDRAW, ALONE, ANSWER, EXPIRE
};
#define queued(of) (waits[of] -> 1 + (version[of] == RETURNED -> 4 : version[of]) : 0)
#define abstract (queued(1) + 8 * (queued(2) + 8 * (turn + 4 * ((turn != NONE && is_expired) + 2 * (versions + 4 * finals)))))
#include "steps.h"

inline add_rows(ours, others) {
    versions++;
    if :: ours -> times_in[me]++ :: else fi;
    if :: others -> times_in[other]++ :: else fi
}

inline check_once() { assert(times_in[1] <= 1 && times_in[2] <= 1) }

/* finalize_pending (tables/commits/finalizing.py): its own version, or one of others that is in its way; it is the next base */
inline finalize() { finals = versions; base = versions }

/* queue_append (store/tables/queued_appends.py) */
inline queue_append() { atomic { waits[me] = true; version[me] = NONE; step(_pid, QUEUE, 0) } }

/* claim_turn (store/tables/queued_appends.py): free, or its lease has expired */
inline claim_turn() {
    atomic {
        if
        :: turn == NONE || is_expired -> turn = me; is_expired = false; claimed = true
        :: else -> claimed = false
        fi;
        step(_pid, CLAIM, claimed)
    }
}

/* waiting_appends (store/tables/queued_appends.py); the commit will be on the version that is the latest in
 * storage then */
inline gather() {
    atomic {
        ours = (waits[me] && version[me] == NONE);
        others = (waits[other] && version[other] == NONE);
        base = finals;
        step(_pid, GATHER, ours + 2 * others)
    }
}

/* mark_appends_committed (store/tables/queued_appends.py): in the transaction that records the version, if all wait. What
 * fails on a version that another commit has taken is tried again on the next one. */
inline commit_queued(action, is_away) {
#ifdef BROKEN_MARKED_AFTERWARDS
    atomic { add_rows(ours, others); made = true };
#endif
    atomic {
#ifdef BROKEN_MARKED_UNSEEN
        made = true;
#else
        made = (!ours || (waits[me] && version[me] == NONE)) && (!others || (waits[other] && version[other] == NONE));
#endif
        is_overtaken = (versions != base);
#ifndef BROKEN_MARKED_AFTERWARDS
        made = made && !is_overtaken;
#endif
        if
        :: made ->
#ifndef BROKEN_MARKED_AFTERWARDS
            add_rows(ours, others);
#endif
            if :: ours -> version[me] = versions; committed_by[me] = me :: else fi;
            if :: others && waits[other] -> version[other] = versions; committed_by[other] = me :: else fi
        :: else
        fi;
        is_overtaken = is_overtaken && !made;
        if :: !is_away -> finalize() :: else fi;
        step(_pid, action, made);
        check_once()
    }
}

/* return_appends (store/tables/queued_appends.py): after an error the others commit theirs, unless they are committed */
inline return_others() {
    atomic {
        if :: waits[other] && version[other] == NONE -> version[other] = RETURNED :: else fi;
        step(_pid, RETURN, 0)
    }
}

/* end_turn (store/tables/queued_appends.py) */
inline end_turn() {
    atomic { if :: turn == me -> turn = NONE; is_expired = false :: else fi; step(_pid, END_TURN, 0) }
}

/* _take_turn (tables/rows/shared_appends.py) */
inline take_turn() {
    claim_turn();
    if
    :: claimed ->
        gather();
        may_stop;
        made = false; failed = false; is_overtaken = ours;
        do
        :: is_overtaken ->
            failed = false;
            if
            :: commit_queued(COMMIT, false)
            :: commit_queued(COMMIT_AWAY, true); failed = true; is_overtaken = false /* made, or not: it cannot know */
            :: atomic { failed = true; is_overtaken = (versions != base); finalize(); step(_pid, CUT, 0) }
            fi;
            may_stop
        :: else -> break
        od;
        if
        :: failed && others -> return_others(); may_stop
        :: !failed && made -> answered = true
        :: else
        fi;
        end_turn()
    :: else
    fi
}

/* withdraw_append (store/tables/queued_appends.py): deletes it and says, in one statement, whether it was committed */
inline withdraw() {
    atomic {
#ifdef BROKEN_WITHDRAWN_BLINDLY
        made = false;
#else
        made = (version[me] != NONE && version[me] != RETURNED);
#endif
        waits[me] = false;
        if :: made -> finalize() :: else -> base = finals fi;
        step(_pid, WITHDRAW, made)
    }
}

/* append_state (store/tables/queued_appends.py): committed by another server, which has ended its turn or lost it */
inline look() {
    atomic {
        is_free = (turn == NONE || is_expired);
        answered = (version[me] != NONE && version[me] != RETURNED && (turn != committed_by[me] || is_expired));
        returned = (version[me] == RETURNED);
        if :: answered && turn == committed_by[me] -> finalize() :: else fi;
        step(_pid, LOOK, (returned -> 2 : answered))
    }
}

/* delete_append (store/tables/queued_appends.py): its outcome is known */
inline delete_append() { atomic { waits[me] = false; step(_pid, DELETE, 0) } }

/* _append_with_retry (tables/rows/append_queue.py): by itself, on the next version as often as others take it */
inline commit_alone() {
    do
    :: atomic {
        if
        :: versions == base -> add_rows(true, false); answered = true
        :: else
        fi;
        finalize();
        step(_pid, ALONE, !answered);
        check_once()
    };
        if :: answered -> break :: else -> may_stop fi
    od
}

/* append (tables/rows/shared_appends.py), _commit_group (tables/rows/append_queue.py): alone, if it was not committed */
proctype Server(byte me) {
    byte other = 3 - me, looks, base;
    bool claimed, ours, others, made, failed, answered, returned, is_overtaken, is_free = true;
    queue_append();
    do
    :: !answered && !failed && !returned && looks < 2 ->
        if :: is_free -> take_turn() :: else fi;
        if :: !answered && !failed -> looks++; look() :: else fi
    :: else -> break
    od;
    may_stop;
    if
    :: answered -> delete_append()
    :: else ->
        withdraw();
        may_stop;
        if
        :: made -> answered = true
        :: else -> commit_alone()
        fi
    fi;
    may_stop;
    atomic { assert(times_in[me] == 1); finalize(); step(_pid, ANSWER, times_in[me]) }; /* its caller looks for the row */
stopped:
    skip
}

/* No function of ours: the turn's lease ends while its server hangs, which goes on later. */
proctype Time() {
    byte times;
    do
    :: atomic { times < 2 && turn != NONE && !is_expired -> is_expired = true; times++; step(_pid, EXPIRE, 1) }
#ifdef SELDOM
    :: times > 0 -> break
#else
    :: break
#endif
    od
}

init { atomic { run Server(1); run Server(2); run Time() } }
